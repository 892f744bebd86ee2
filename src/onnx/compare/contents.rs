//! The elements of two tensors, wherever they lie.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ckpt_passes::graph::ElementType;

use super::data_place::{DataPlace, Extent, fill};
use super::difference::Difference;
use super::fields::{Numbers, bytes, fields};
use super::rules::{Kind, Rule, rule};
use crate::onnx::file::{FileIdentity, folder_of};
use crate::onnx::model::Model;
use crate::onnx::schema::tensor;
use crate::onnx::tensor::{TensorHeader, element};
use crate::onnx::wire::{Message, Value, Width, WireError};

/// As much is compared at once.
const BLOCK: usize = 1 << 18;

/// Where the two models lie.
#[derive(Clone)]
pub(super) struct Sides {
    ours: Option<PathBuf>,
    theirs: Option<PathBuf>,
    /// Equal bytes mean equal contents: nothing lies elsewhere, or what does is found in the same folder.
    quick: bool,
    depth: usize,
}

impl Sides {
    /// Of messages that nothing else belongs to.
    #[cfg(test)]
    pub(super) fn alone() -> Sides {
        Sides {
            ours: None,
            theirs: None,
            quick: true,
            depth: 0,
        }
    }

    pub(super) fn of(original: &Model, written: &Model) -> Sides {
        let folder = |model: &Model| model.source.as_ref().map(|source| folder_of(&source.path));
        let (ours, theirs) = (folder(original), folder(written));
        let identity = |folder: &Option<PathBuf>| FileIdentity::of(folder.as_ref()?).ok();
        let shared = identity(&ours).is_some_and(|ours| Some(ours) == identity(&theirs));
        let inside = || original.external_data().is_empty() && written.external_data().is_empty();
        Sides {
            quick: shared || inside(),
            ours,
            theirs,
            depth: 0,
        }
    }

    /// Do these bytes show that their meaning is equal?
    pub(super) fn equal(&self, a: &[u8], b: &[u8]) -> bool {
        self.quick && a == b
    }

    /// One level further in, if there may be one.
    pub(super) fn deeper(&self, deepest: usize) -> Option<Sides> {
        (self.depth < deepest).then(|| Sides {
            depth: self.depth + 1,
            ..self.clone()
        })
    }
}

/// Where the elements lie.
enum Held<'m> {
    Raw(Message<'m>),
    /// In the field of this number.
    Typed(u32),
    Outside(DataPlace),
}

impl<'m> Held<'m> {
    fn of(pieces: &'m [Message<'m>], element: Option<ElementType>) -> Result<Held<'m>, Difference> {
        let mut outside = false;
        let mut raw = None;
        for field in fields(pieces) {
            let field = field?;
            match field.number {
                tensor::DATA_LOCATION => outside = field.varint()? == 1,
                tensor::RAW_DATA => raw = Some(field.message()?),
                _ => {}
            }
        }
        if outside {
            return Ok(Held::Outside(DataPlace::of(pieces)?.unwrap_or_default()));
        }
        Ok(match raw {
            Some(raw) => Held::Raw(raw),
            None => Held::Typed(typed(element).map_or(tensor::RAW_DATA, |row| row.0)),
        })
    }

    /// The number of the field that holds them.
    fn field(&self) -> u32 {
        match self {
            Held::Raw(_) => tensor::RAW_DATA,
            Held::Typed(number) => *number,
            Held::Outside(_) => tensor::EXTERNAL_DATA,
        }
    }
}

/// The field for elements of a type, how it is encoded, and how many bytes each number stands for.
fn typed(element: Option<ElementType>) -> Option<(u32, Width, usize)> {
    use ElementType::*;
    Some(match element? {
        Float | Complex64 => (tensor::FLOAT_DATA, Width::Fixed32, 4),
        Double | Complex128 => (tensor::DOUBLE_DATA, Width::Fixed64, 8),
        Int64 => (tensor::INT64_DATA, Width::Varint, 8),
        Uint64 => (tensor::UINT64_DATA, Width::Varint, 8),
        Uint32 => (tensor::UINT64_DATA, Width::Varint, 4),
        Int32 => (tensor::INT32_DATA, Width::Varint, 4),
        Int16 | Uint16 | Float16 | Bfloat16 => (tensor::INT32_DATA, Width::Varint, 2),
        Int8 | Uint8 | Bool | Uint4 | Int4 => (tensor::INT32_DATA, Width::Varint, 1),
        Float8E4M3Fn | Float8E4M3Fnuz | Float8E5M2 | Float8E5M2Fnuz => {
            (tensor::INT32_DATA, Width::Varint, 1)
        }
        String => return None,
    })
}

/// Do two tensors, whose types and dimensions are equal, hold the same?
pub(super) fn contents(
    sides: &Sides,
    a: &[Message<'_>],
    b: &[Message<'_>],
) -> Result<(), Difference> {
    let header = TensorHeader::of(a)?;
    let element = header.element.or(element(0));
    let (ours, theirs) = (Held::of(a, element)?, Held::of(b, element)?);
    idle(a, b, &ours, &theirs)?;
    match (&ours, &theirs) {
        (Held::Outside(ours), Held::Outside(theirs)) => outside(sides, &header, ours, theirs),
        (Held::Typed(x), Held::Typed(y)) if x == y => {
            let Some((number, width, _)) = typed(element) else {
                // Texts, which `idle` has compared.
                return Ok(());
            };
            let mut both = (Numbers::of(a, number, width), Numbers::of(b, number, width));
            for position in 0_u64.. {
                let (a, b) = (both.0.next().transpose()?, both.1.next().transpose()?);
                if a != b {
                    return Err(differs(position, a.is_some() && b.is_some()));
                }
                if a.is_none() {
                    break;
                }
            }
            Ok(())
        }
        _ => {
            let size = size(&header);
            let mut both = (
                stream(a, &ours, sides.ours.as_deref(), size, element)?,
                stream(b, &theirs, sides.theirs.as_deref(), size, element)?,
            );
            same_streams(&mut *both.0, &mut *both.1, element)
        }
    }
}

/// What stands in fields that hold no elements must be the same too; also texts, and what is of a type that is not known.
fn idle(
    a: &[Message<'_>],
    b: &[Message<'_>],
    ours: &Held<'_>,
    theirs: &Held<'_>,
) -> Result<(), Difference> {
    let used = [ours.field(), theirs.field(), tensor::DATA_LOCATION];
    let idle = |pieces| {
        fields(pieces).filter(move |field: &Result<_, WireError>| {
            field
                .as_ref()
                .map_or(true, |field: &crate::onnx::wire::Field<'_>| {
                    rule(Kind::Tensor, field.number) == Some(Rule::Contents)
                        && !used.contains(&field.number)
                })
        })
    };
    let mut both = (idle(a), idle(b));
    for position in 0.. {
        match (both.0.next().transpose()?, both.1.next().transpose()?) {
            (None, None) => break,
            (Some(a), Some(b)) if a.number == b.number && bytes(&a, &b) => {}
            (a, b) => {
                let whole = a.is_some() && b.is_some();
                return Err(differs(position, whole));
            }
        }
    }
    // data_location: INLINE may be said or not; what is neither is not known.
    let odd = |pieces| -> Result<Vec<u64>, WireError> {
        let mut found = Vec::new();
        for field in fields(pieces) {
            let field = field?;
            if let (tensor::DATA_LOCATION, Value::Varint(value)) = (field.number, field.value)
                && value > 1
            {
                found.push(value);
            }
        }
        Ok(found)
    };
    match odd(a)? == odd(b)? {
        true => Ok(()),
        false => Err(Difference::new("data_location differs")),
    }
}

fn outside(
    sides: &Sides,
    header: &TensorHeader,
    ours: &DataPlace,
    theirs: &DataPlace,
) -> Result<(), Difference> {
    if ours.others != theirs.others {
        return Err(Difference::new(
            "external_data differs in more than location, offset and length",
        ));
    }
    let size = size(header);
    let there = theirs.open(sides.theirs.as_deref(), size);
    let here = match ours.open(sides.ours.as_deref(), size) {
        Ok(here) => here,
        // Nobody can tell what it held. The same words then mean the same.
        Err(_) if ours == theirs => return Ok(()),
        Err(error) => return Err(unreadable("the original's", ours, &error)),
    };
    let there = there.map_err(|error| unreadable("its", theirs, &error))?;
    let (shown, mut both) = ([ours.show(), theirs.show()], (here, there));
    if both.0.is(&both.1) {
        return Ok(());
    }
    same_extents(&mut both.0, &mut both.1, header.element).map_err(|difference| {
        difference.within(|| format!("external data ({}, and {})", shown[0], shown[1]))
    })
}

fn same_extents(
    a: &mut Extent,
    b: &mut Extent,
    element: Option<ElementType>,
) -> Result<(), Difference> {
    if a.length != b.length {
        return Err(Difference::new(format!(
            "expected {} bytes, found {}",
            a.length, b.length
        )));
    }
    let (a, b) = ((&mut a.file).take(a.length), (&mut b.file).take(b.length));
    let (mut a, mut b) = (a, b);
    same_streams(&mut a, &mut b, element)
}

/// How many bytes the elements take, where that is known.
fn size(header: &TensorHeader) -> Option<u64> {
    let element = header.element?;
    let dims = header.shape.as_ref()?;
    let count = dims
        .iter()
        .try_fold(1_u64, |count, &dim| count.checked_mul(dim))?;
    (element != ElementType::String).then(|| element.bytes(count).0)
}

fn unreadable(whose: &str, place: &DataPlace, error: &io::Error) -> Difference {
    Difference::new(format!(
        "{whose} contents are in {}, which cannot be read: {error}",
        place.show()
    ))
}

/// The elements as they lie in memory.
fn stream<'m>(
    pieces: &'m [Message<'m>],
    held: &Held<'m>,
    folder: Option<&Path>,
    size: Option<u64>,
    element: Option<ElementType>,
) -> Result<Box<dyn Read + 'm>, Difference> {
    Ok(match held {
        Held::Raw(raw) => Box::new(raw.bytes),
        Held::Outside(place) => {
            let found = place.open(folder, size);
            let found = found.map_err(|error| unreadable("its", place, &error))?;
            Box::new(found.file.take(found.length))
        }
        Held::Typed(_) => match typed(element) {
            Some((number, width, bytes)) => Box::new(Decoded {
                numbers: Numbers::of(pieces, number, width),
                bytes,
            }),
            None => Box::new(&[][..]),
        },
    })
}

/// Numbers as the bytes of elements.
struct Decoded<'m> {
    numbers: Numbers<'m>,
    /// Of an element: 8 at most.
    bytes: usize,
}

impl Read for Decoded<'_> {
    /// Whole elements. Blocks are a multiple of eight bytes.
    fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        for place in block.chunks_exact_mut(self.bytes) {
            match self.numbers.next().transpose().map_err(io::Error::other)? {
                None => break,
                Some(number) => place.copy_from_slice(&number.to_le_bytes()[..self.bytes]),
            }
            filled += self.bytes;
        }
        Ok(filled)
    }
}

fn same_streams(
    a: &mut dyn Read,
    b: &mut dyn Read,
    element: Option<ElementType>,
) -> Result<(), Difference> {
    let (mut ours, mut theirs) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut before = 0_u64;
    let failed = |error: io::Error| Difference::new(format!("contents cannot be read: {error}"));
    let (mut a, mut b) = (a, b);
    loop {
        let read = (
            fill(&mut a, &mut ours).map_err(failed)?,
            fill(&mut b, &mut theirs).map_err(failed)?,
        );
        let (x, y) = (&ours[..read.0], &theirs[..read.1]);
        if x != y {
            let common = x.iter().zip(y).take_while(|(x, y)| x == y).count();
            let at = before + common as u64;
            let width = element.map_or(1, |element| element.bytes(1).0.max(1));
            return Err(differs(at / width, common < x.len().min(y.len())));
        }
        if read.0 < BLOCK {
            return Ok(());
        }
        before += BLOCK as u64;
    }
}

fn differs(element: u64, both: bool) -> Difference {
    match both {
        true => Difference::new(format!("its contents differ, first at element {element}")),
        false => Difference::new(format!(
            "its contents differ: one of the two ends at element {element}"
        )),
    }
}
