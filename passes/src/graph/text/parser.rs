//! Text to graph, by recursive descent of bounded depth.

use std::mem;

use super::super::{Dimension, Graph, Node, Tensor, TensorId, TensorKind};
use super::TextError;
use super::lexer::{self, Token, TokenKind};

pub(super) fn parse(text: &str) -> Result<Graph, TextError> {
    let mut parser = Parser {
        tokens: lexer::tokens(text)?,
        next: 0,
        graph: Graph::default(),
    };
    if parser.at("<") {
        parser.header()?;
    }
    parser.graph()?;
    if parser.peek().kind != TokenKind::End {
        return Err(parser.peek().error("the end"));
    }
    Ok(parser.graph)
}

pub(super) struct Parser {
    tokens: Vec<Token>,
    next: usize,
    graph: Graph,
}

impl Parser {
    /// `<ir_version: 8, opset_import: ["" : 15], producer_name: "x">`
    fn header(&mut self) -> Result<(), TextError> {
        self.mark("<")?;
        while !self.accept(">") {
            let key = self.identifier("a key such as `opset_import`")?;
            self.mark(":")?;
            if !self.accept("[") {
                self.literal()?;
            } else {
                while !self.accept("]") {
                    let domain = self.string("a quoted domain")?;
                    self.mark(":")?;
                    let version = self.advance();
                    if key == "opset_import" {
                        self.graph
                            .opsets
                            .insert(domain, integer(&version, "a version")?);
                    }
                    self.separator("]")?;
                }
            }
            self.separator(">")?;
        }
        Ok(())
    }

    /// `name (inputs) => (outputs) <values and initializers> { nodes }`
    fn graph(&mut self) -> Result<(), TextError> {
        self.graph.name = self.name("the graph's name")?;
        self.mark("(")?;
        while !self.accept(")") {
            let id = self.declaration(TensorKind::Input)?;
            self.graph.inputs.push(id);
            self.separator(")")?;
        }
        self.mark("=>")?;
        self.mark("(")?;
        while !self.accept(")") {
            let id = self.declaration(TensorKind::Value)?;
            self.graph.outputs.push(id);
            self.separator(")")?;
        }
        if self.accept("<") {
            while !self.accept(">") {
                self.declaration(TensorKind::Value)?;
                self.separator(">")?;
            }
        }
        self.mark("{")?;
        while !self.accept("}") {
            let node = self.node()?;
            self.graph.add_node(node);
        }
        Ok(())
    }

    /// `[type] name [= {contents}]`
    fn declaration(&mut self, kind: TensorKind) -> Result<TensorId, TextError> {
        let start = self.peek().clone();
        let declared = self.optional_type()?;
        let at_name = self.peek().clone();
        let name = self.name("a tensor's name")?;
        if name.is_empty() {
            return Err(at_name.error("a tensor's name"));
        }
        if kind == TensorKind::Input && self.graph.tensor_named(&name).is_some() {
            return Err(at_name.error("an input's name that is not taken"));
        }
        let id = match self.graph.tensor_named(&name) {
            Some(id) => id,
            None => self.graph.add_tensor(Tensor::new(name, kind)),
        };
        let shape = declared.dimensions.as_deref().and_then(known);
        let tensor = self.graph.tensor_mut(id);
        if declared.element.is_some() {
            if tensor.element.is_none() && tensor.declared.is_none() {
                tensor.element = declared.element;
                tensor.shape = shape.clone();
                tensor.declared = declared.dimensions;
            } else if (tensor.element, &tensor.declared) != (declared.element, &declared.dimensions)
            {
                return Err(start.error("the type that was declared before"));
            }
        }
        if self.accept("=") {
            let element = declared.element;
            let constant = self.contents(element, shape.as_deref())?;
            let tensor = self.graph.tensor_mut(id);
            if tensor.kind == TensorKind::Initializer {
                return Err(start.error("only one initializer of that name"));
            }
            tensor.kind = TensorKind::Initializer;
            tensor.constant = constant;
        }
        Ok(id)
    }

    /// `[name] y, z = domain.Operator <attributes> (a, "", b; captured)`; attributes may also
    /// stand behind the inputs.
    fn node(&mut self) -> Result<Node, TextError> {
        let mut node = Node::new("", "", "", Vec::new(), Vec::new());
        if self.accept("[") {
            node.name = self.name("the node's name")?;
            self.mark("]")?;
        }
        node.outputs = self.tensors("=")?;
        self.mark("=")?;
        self.operator(&mut node)?;
        self.attributes(&mut node)?;
        self.mark("(")?;
        node.inputs = self.tensors(")")?;
        if self.accept(";") {
            node.captures = self.tensors(")")?.into_iter().flatten().collect();
        }
        self.mark(")")?;
        self.attributes(&mut node)?;
        Ok(node)
    }

    /// Names up to (not including) `end` or `;`. Nothing between two commas is an omitted name,
    /// as is `""`; one trailing comma is ignored.
    fn tensors(&mut self, end: &str) -> Result<Vec<Option<TensorId>>, TextError> {
        let mut ids = Vec::new();
        while !self.at(end) && !self.at(";") {
            if self.accept(",") {
                ids.push(None);
                continue;
            }
            let name = self.name("a tensor's name")?;
            ids.push(match self.graph.tensor_named(&name) {
                _ if name.is_empty() => None,
                Some(id) => Some(id),
                None => Some(self.graph.add_tensor(Tensor::new(name, TensorKind::Value))),
            });
            if !self.at(end) && !self.at(";") {
                self.mark(",")?;
            }
        }
        Ok(ids)
    }

    /// The part before the last `.` is the domain; `ai.onnx` is the empty one.
    fn operator(&mut self, node: &mut Node) -> Result<(), TextError> {
        self.accept(".");
        let mut parts = vec![self.name("an operator")?];
        while self.accept(".") {
            parts.push(self.name("an operator")?);
        }
        node.op_type = parts.pop().unwrap_or_default();
        node.domain = parts.join(".");
        if node.domain == "ai.onnx" {
            node.domain.clear();
        }
        Ok(())
    }

    /// An identifier or a quoted name.
    pub(super) fn name(&mut self, what: &str) -> Result<String, TextError> {
        let token = self.advance();
        match &token.kind {
            TokenKind::Identifier(name) => Ok(name.clone()),
            TokenKind::String(bytes) => utf8(bytes, &token),
            _ => Err(token.error(what)),
        }
    }

    pub(super) fn identifier(&mut self, what: &str) -> Result<String, TextError> {
        match self.advance() {
            Token {
                kind: TokenKind::Identifier(name),
                ..
            } => Ok(name),
            token => Err(token.error(what)),
        }
    }

    pub(super) fn string(&mut self, what: &str) -> Result<String, TextError> {
        let token = self.advance();
        utf8(&text_of(&token, what)?, &token)
    }

    /// A comma, unless the list ends here.
    pub(super) fn separator(&mut self, end: &str) -> Result<(), TextError> {
        if self.accept(",") || self.at(end) {
            return Ok(());
        }
        Err(self.peek().error(format!("`,` or `{end}`")))
    }

    pub(super) fn mark(&mut self, mark: &str) -> Result<(), TextError> {
        if self.accept(mark) {
            Ok(())
        } else {
            Err(self.peek().error(format!("`{mark}`")))
        }
    }

    pub(super) fn accept(&mut self, mark: &str) -> bool {
        let there = self.at(mark);
        if there {
            self.advance();
        }
        there
    }

    pub(super) fn at(&self, mark: &str) -> bool {
        matches!(self.peek().kind, TokenKind::Mark(m) if m == mark)
    }

    pub(super) fn peek(&self) -> &Token {
        &self.tokens[self.next]
    }

    /// Takes a token; the last one stays.
    pub(super) fn advance(&mut self) -> Token {
        if self.next + 1 == self.tokens.len() {
            return self.tokens[self.next].clone();
        }
        self.next += 1;
        let token = &mut self.tokens[self.next - 1];
        let kind = mem::replace(&mut token.kind, TokenKind::End);
        Token {
            kind,
            line: token.line,
            column: token.column,
        }
    }
}

pub(super) fn integer(token: &Token, what: &str) -> Result<i64, TextError> {
    match &token.kind {
        TokenKind::Integer(text) => text.parse().map_err(|_| token.error("a 64-bit integer")),
        _ => Err(token.error(what)),
    }
}

pub(super) fn float<F: std::str::FromStr>(token: &Token) -> Result<F, TextError> {
    let number = match &token.kind {
        TokenKind::Integer(text) | TokenKind::Float(text) => Some(text),
        TokenKind::Identifier(word) if ["inf", "nan"].contains(&word.as_str()) => Some(word),
        _ => None,
    };
    number
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| token.error("a number"))
}

pub(super) fn text_of(token: &Token, what: &str) -> Result<Vec<u8>, TextError> {
    match &token.kind {
        TokenKind::String(bytes) => Ok(bytes.clone()),
        _ => Err(token.error(what)),
    }
}

pub(super) fn utf8(bytes: &[u8], token: &Token) -> Result<String, TextError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| token.error("UTF-8"))
}

pub(super) fn known(dimensions: &[Dimension]) -> Option<Vec<u64>> {
    dimensions.iter().map(Dimension::number).collect()
}
