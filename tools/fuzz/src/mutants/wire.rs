//! Protobuf messages as lists of fields, so that one of them can be changed and all else stays.

/// What a field holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    Bytes(Vec<u8>),
}

/// A message: numbers and values, in their sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Msg(pub(crate) Vec<(u32, Value)>);

impl Msg {
    /// `None` if the bytes are no message.
    pub(crate) fn parse(mut bytes: &[u8]) -> Option<Msg> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes)?;
            let value = match key & 7 {
                0 => Value::Varint(varint(&mut bytes)?),
                1 => Value::Fixed64(take(&mut bytes, 8)?.try_into().ok()?),
                5 => Value::Fixed32(take(&mut bytes, 4)?.try_into().ok()?),
                2 => {
                    let length = usize::try_from(varint(&mut bytes)?).ok()?;
                    Value::Bytes(take(&mut bytes, length)?.to_vec())
                }
                _ => return None,
            };
            fields.push((u32::try_from(key >> 3).ok()?, value));
        }
        Some(Msg(fields))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, value) in &self.0 {
            let mut key = |wire| put(&mut out, u64::from(*number) << 3 | wire);
            match value {
                Value::Varint(value) => {
                    key(0);
                    put(&mut out, *value);
                }
                Value::Fixed64(value) => {
                    key(1);
                    out.extend_from_slice(value);
                }
                Value::Fixed32(value) => {
                    key(5);
                    out.extend_from_slice(value);
                }
                Value::Bytes(value) => {
                    key(2);
                    put(&mut out, value.len() as u64);
                    out.extend_from_slice(value);
                }
            }
        }
        out
    }

    /// Where fields with this number stand.
    pub(crate) fn places(&self, number: u32) -> Vec<usize> {
        let with_number =
            |(place, field): (usize, &(u32, Value))| (field.0 == number).then_some(place);
        self.0.iter().enumerate().filter_map(with_number).collect()
    }

    /// The contents of the fields with this number.
    pub(crate) fn all(&self, number: u32) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter_map(move |field| match &field.1 {
            Value::Bytes(bytes) if field.0 == number => Some(bytes.as_slice()),
            _ => None,
        })
    }

    pub(crate) fn texts(&self, number: u32) -> Vec<String> {
        self.all(number)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .collect()
    }

    pub(crate) fn text(&self, number: u32) -> String {
        self.texts(number).pop().unwrap_or_default()
    }

    pub(crate) fn int(&self, number: u32) -> u64 {
        let found = self.0.iter().rev().find_map(|field| match field.1 {
            Value::Varint(value) if field.0 == number => Some(value),
            _ => None,
        });
        found.unwrap_or(0)
    }

    pub(crate) fn msgs(&self, number: u32) -> Vec<Msg> {
        self.all(number).filter_map(Msg::parse).collect()
    }

    /// Sets the field at a place to a message.
    pub(crate) fn put(&mut self, place: usize, contents: &Msg) {
        self.0[place].1 = Value::Bytes(contents.encode());
    }

    pub(crate) fn at(&self, place: usize) -> Option<Msg> {
        match &self.0[place].1 {
            Value::Bytes(bytes) => Msg::parse(bytes),
            _ => None,
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (&first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f).checked_shl(shift).unwrap_or(0);
        if first < 0x80 {
            return Some(value);
        }
    }
    None
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take<'b>(bytes: &mut &'b [u8], length: usize) -> Option<&'b [u8]> {
    if length > bytes.len() {
        return None;
    }
    let (taken, rest) = bytes.split_at(length);
    *bytes = rest;
    Some(taken)
}
