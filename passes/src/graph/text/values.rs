//! The parts of the text that hold values: types, contents, attributes.

use super::super::{Attribute, AttributeValue, Constant, Dimension, ElementType, Node};
use super::TextError;
use super::lexer::TokenKind;
use super::parser::{Parser, float, integer, known, text_of, utf8};

/// A tensor's type as written; `dimensions` is `None` for an unknown rank.
#[derive(Default, PartialEq)]
pub(super) struct WrittenType {
    pub(super) element: Option<ElementType>,
    pub(super) dimensions: Option<Vec<Dimension>>,
}

impl Parser {
    /// Nothing, `float` (a scalar), `float[]` (any rank), `float[N,3,?]`; or a type that is no
    /// tensor, such as `seq(float[N])`, which is skipped.
    pub(super) fn optional_type(&mut self) -> Result<WrittenType, TextError> {
        let TokenKind::Identifier(word) = &self.peek().kind else {
            return Ok(WrittenType::default());
        };
        if let Some(element) = ElementType::from_name(word) {
            self.advance();
            let dimensions = self.dimensions()?;
            return Ok(WrittenType {
                element: Some(element),
                dimensions,
            });
        }
        if NOT_TENSORS.contains(&word.as_str()) {
            self.advance();
            self.mark("(")?;
            let mut open = 1;
            while open > 0 {
                let token = self.advance();
                match token.kind {
                    TokenKind::Mark("(") => open += 1,
                    TokenKind::Mark(")") => open -= 1,
                    TokenKind::End => return Err(token.error("`)`")),
                    _ => {}
                }
            }
        }
        Ok(WrittenType::default())
    }

    fn dimensions(&mut self) -> Result<Option<Vec<Dimension>>, TextError> {
        if !self.accept("[") {
            return Ok(Some(Vec::new()));
        }
        if self.accept("]") {
            return Ok(None);
        }
        let mut dimensions = Vec::new();
        while !self.accept("]") {
            let token = self.advance();
            dimensions.push(match &token.kind {
                TokenKind::Mark("?") => Dimension::Unknown,
                TokenKind::Identifier(symbol) => Dimension::Symbol(symbol.clone()),
                TokenKind::String(bytes) => Dimension::Symbol(utf8(bytes, &token)?),
                _ => match integer(&token, DIMENSION)?.try_into() {
                    Ok(size) => Dimension::Known(size),
                    Err(_) => return Err(token.error(DIMENSION)),
                },
            });
            self.separator("]")?;
        }
        Ok(Some(dimensions))
    }

    /// `{1, 2}`, `{...}`, or external data: `["location": "file", ...]`.
    pub(super) fn contents(
        &mut self,
        element: Option<ElementType>,
        shape: Option<&[u64]>,
    ) -> Result<Option<Constant>, TextError> {
        if self.accept("[") {
            while !self.accept("]") {
                self.string("a quoted key")?;
                self.mark(":")?;
                self.string("a quoted value")?;
                self.separator("]")?;
            }
            return Ok(None);
        }
        let start = self.peek().clone();
        self.mark("{")?;
        if self.accept("...") {
            self.mark("}")?;
            return Ok(None);
        }
        let mut ints = Vec::new();
        let mut floats = Vec::new();
        let mut count = 0u64;
        while !self.accept("}") {
            let token = self.advance();
            match element {
                Some(ElementType::String) => drop(text_of(&token, "a string")?),
                Some(ElementType::Float) => floats.push(f64::from(float::<f32>(&token)?)),
                Some(other) if !other.is_float() => ints.push(integer(&token, "an integer")?),
                _ => floats.push(float::<f64>(&token)?),
            }
            count += 1;
            self.separator("}")?;
        }
        let wanted = shape.map(crate::graph::count);
        if let Some(wanted) = wanted.filter(|&wanted| wanted != count) {
            let mut error = start.error(format!("{wanted} elements"));
            error.found = count.to_string();
            return Err(error);
        }
        Ok(match element {
            Some(ElementType::String) => None,
            Some(other) if !other.is_float() => Some(Constant::Ints(ints)),
            _ => Some(Constant::Floats(floats)),
        })
    }

    /// `<alpha = 1.0, perm : ints = [0, 1]>`, or nothing.
    pub(super) fn attributes(&mut self, node: &mut Node) -> Result<(), TextError> {
        if !self.accept("<") {
            return Ok(());
        }
        while !self.accept(">") {
            let at_name = self.peek().clone();
            let name = self.name("an attribute's name")?;
            if node.attribute(&name).is_some() {
                return Err(at_name.error("an attribute that is not there yet"));
            }
            let mut kind = None;
            if self.accept(":") {
                let token = self.peek().clone();
                let word = self.identifier(ATTRIBUTE_TYPE)?;
                if !ATTRIBUTE_TYPES.contains(&word.as_str()) {
                    return Err(token.error(ATTRIBUTE_TYPE));
                }
                kind = Some(word);
            }
            self.mark("=")?;
            let value = self.attribute_value(kind.as_deref())?;
            node.attributes.push(Attribute { name, value });
            self.separator(">")?;
        }
        Ok(())
    }

    fn attribute_value(&mut self, kind: Option<&str>) -> Result<AttributeValue, TextError> {
        let start = self.peek().clone();
        let value = if self.accept("...") {
            return Ok(AttributeValue::Opaque);
        } else if self.accept("[") {
            self.list(kind)?
        } else {
            self.literal()?
        };
        let value = match (kind, value) {
            (Some("float"), AttributeValue::Int(_)) => AttributeValue::Float(float(&start)?),
            (_, value) => value,
        };
        let fits = match &value {
            AttributeValue::Int(_) => "int",
            AttributeValue::Float(_) => "float",
            AttributeValue::String(_) => "string",
            AttributeValue::Ints(_) => "ints",
            AttributeValue::Floats(_) => "floats",
            AttributeValue::Strings(_) => "strings",
            AttributeValue::Tensor { .. } => "tensor",
            AttributeValue::Opaque => return Ok(value),
        };
        match kind {
            Some(kind) if kind != fits => Err(start.error(format!("a value of type {kind}"))),
            _ => Ok(value),
        }
    }

    /// A list, behind its `[`. Integers among floats are floats.
    fn list(&mut self, kind: Option<&str>) -> Result<AttributeValue, TextError> {
        let mut items = Vec::new();
        while !self.at("]") {
            items.push(self.advance());
            self.separator("]")?;
        }
        let end = self.advance();
        let kind = match (kind, items.first().map(|item| &item.kind)) {
            (Some(kind), _) => kind,
            (None, None) => return Err(end.error("an element, or the list's type before it")),
            (None, Some(TokenKind::String(_))) => "strings",
            (None, _)
                if items
                    .iter()
                    .all(|i| matches!(i.kind, TokenKind::Integer(_))) =>
            {
                "ints"
            }
            (None, _) => "floats",
        };
        Ok(match kind {
            "strings" => AttributeValue::Strings(
                items
                    .iter()
                    .map(|i| text_of(i, "a string"))
                    .collect::<Result<_, _>>()?,
            ),
            "floats" => AttributeValue::Floats(items.iter().map(float).collect::<Result<_, _>>()?),
            _ => AttributeValue::Ints(
                items
                    .iter()
                    .map(|i| integer(i, "an integer"))
                    .collect::<Result<_, _>>()?,
            ),
        })
    }

    /// A string, a number, or a tensor such as `int64[2] {1, 2}`.
    pub(super) fn literal(&mut self) -> Result<AttributeValue, TextError> {
        let token = self.advance();
        match &token.kind {
            TokenKind::String(bytes) => return Ok(AttributeValue::String(bytes.clone())),
            TokenKind::Integer(_) => return Ok(AttributeValue::Int(integer(&token, VALUE)?)),
            TokenKind::Float(_) => return Ok(AttributeValue::Float(float(&token)?)),
            TokenKind::Identifier(word) => {
                if let Some(element) = ElementType::from_name(word) {
                    let dimensions = self.dimensions()?;
                    let Some(shape) = dimensions.as_deref().and_then(known) else {
                        return Err(token.error("a tensor with all its dimensions"));
                    };
                    let constant = self.contents(Some(element), Some(&shape))?;
                    return Ok(AttributeValue::Tensor {
                        element,
                        shape,
                        constant,
                    });
                }
                if let Ok(value) = float(&token) {
                    return Ok(AttributeValue::Float(value));
                }
            }
            _ => {}
        }
        Err(token.error(VALUE))
    }
}

/// Words that start the type of something other than a tensor.
pub(super) const NOT_TENSORS: [&str; 4] = ["seq", "map", "optional", "sparse_tensor"];

const ATTRIBUTE_TYPES: [&str; 8] = [
    "int", "float", "string", "ints", "floats", "strings", "tensor", "graph",
];

const ATTRIBUTE_TYPE: &str = "an attribute's type such as `ints`";
const DIMENSION: &str = "a dimension: a size, a name or `?`";
const VALUE: &str = "a value: a number, a string, a list, a tensor or `...`";
