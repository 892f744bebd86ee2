//! Cuts a text into tokens.

use super::TextError;

/// What a token is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TokenKind {
    /// A letter or `_`, then letters, digits and `_`.
    Identifier(String),
    /// A quoted string, unescaped.
    String(Vec<u8>),
    /// Digits with an optional sign.
    Integer(String),
    /// A number with a point or an exponent.
    Float(String),
    /// One of `< > ( ) [ ] { } , : ; = .` and `?`, or `=>` or `...`.
    Mark(&'static str),
    /// Behind the last token.
    End,
}

/// A token and where it starts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Token {
    /// The error that `expected` should stand here.
    pub(super) fn error(&self, expected: impl Into<String>) -> TextError {
        let found = match &self.kind {
            TokenKind::Identifier(text) | TokenKind::Integer(text) | TokenKind::Float(text) => {
                format!("`{text}`")
            }
            TokenKind::String(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
            TokenKind::Mark(mark) => format!("`{mark}`"),
            TokenKind::End => "the end".to_owned(),
        };
        TextError {
            line: self.line,
            column: self.column,
            expected: expected.into(),
            found,
        }
    }
}

/// Longer marks come first.
const MARKS: [&str; 15] = [
    "...", "=>", "<", ">", "(", ")", "[", "]", "{", "}", ",", ":", ";", "=", ".",
];

/// All tokens of `text`; the last one is [`TokenKind::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, TextError> {
    let mut lexer = Lexer {
        rest: text,
        line: 1,
        column: 1,
    };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blanks();
        let (line, column) = (lexer.line, lexer.column);
        let kind = lexer.token()?;
        let end = kind == TokenKind::End;
        tokens.push(Token { kind, line, column });
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    column: usize,
}

impl<'a> Lexer<'a> {
    fn token(&mut self) -> Result<TokenKind, TextError> {
        let Some(first) = self.rest.chars().next() else {
            return Ok(TokenKind::End);
        };
        if first.is_ascii_alphabetic() || first == '_' {
            let text = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
            return Ok(TokenKind::Identifier(text.to_owned()));
        }
        if first.is_ascii_digit() || (first == '-' && self.rest[1..].starts_with(digit_or_inf)) {
            return Ok(self.number());
        }
        if first == '"' {
            return self.string();
        }
        if first == '?' {
            self.take("?".len());
            return Ok(TokenKind::Mark("?"));
        }
        if let Some(mark) = MARKS.into_iter().find(|mark| self.rest.starts_with(mark)) {
            self.take(mark.len());
            return Ok(TokenKind::Mark(mark));
        }
        Err(self.error(
            "a name, a number, a string or punctuation",
            format!("`{first}`"),
        ))
    }

    fn number(&mut self) -> TokenKind {
        let whole = self.rest;
        if self.rest.starts_with('-') {
            self.take(1);
        }
        if self.rest.starts_with("inf") {
            self.take("inf".len());
            return TokenKind::Float("-inf".to_owned());
        }
        self.take_while(|c| c.is_ascii_digit());
        let mut float = false;
        if self.rest.starts_with('.') && !self.rest.starts_with("..") {
            float = true;
            self.take(1);
            self.take_while(|c| c.is_ascii_digit());
        }
        if let Some(exponent) = self.rest.strip_prefix(['e', 'E']) {
            let sign = usize::from(exponent.starts_with(['+', '-']));
            if exponent[sign..].starts_with(|c: char| c.is_ascii_digit()) {
                float = true;
                self.take(1 + sign);
                self.take_while(|c| c.is_ascii_digit());
            }
        }
        let text = whole[..whole.len() - self.rest.len()].to_owned();
        if float {
            TokenKind::Float(text)
        } else {
            TokenKind::Integer(text)
        }
    }

    fn string(&mut self) -> Result<TokenKind, TextError> {
        self.take(1);
        let mut bytes = Vec::new();
        loop {
            let plain = self.take_while(|c| c != '"' && c != '\\');
            bytes.extend_from_slice(plain.as_bytes());
            if self.rest.starts_with('"') {
                self.take(1);
                return Ok(TokenKind::String(bytes));
            }
            let escaped = self.rest.chars().nth(1);
            let Some(escaped) = escaped else {
                return Err(self.error("a closing quote", "the end".to_owned()));
            };
            if let Some(byte) = self
                .rest
                .get(2..4)
                .filter(|_| escaped == 'x')
                .and_then(hex_byte)
            {
                bytes.push(byte);
                self.take(4);
                continue;
            }
            bytes.extend_from_slice(escaped.encode_utf8(&mut [0; 4]).as_bytes());
            self.take(1 + escaped.len_utf8());
        }
    }

    fn skip_blanks(&mut self) {
        loop {
            self.take_while(char::is_whitespace);
            if !self.rest.starts_with('#') {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !accept(c)).unwrap_or(self.rest.len());
        self.take(end)
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        for c in taken.chars() {
            if c == '\n' {
                self.line += 1;
                self.column = 1;
            } else {
                self.column += 1;
            }
        }
        self.rest = rest;
        taken
    }

    fn error(&self, expected: &str, found: String) -> TextError {
        TextError {
            line: self.line,
            column: self.column,
            expected: expected.to_owned(),
            found,
        }
    }
}

fn digit_or_inf(c: char) -> bool {
    c.is_ascii_digit() || c == 'i'
}

fn hex_byte(text: &str) -> Option<u8> {
    text.bytes()
        .all(|b| b.is_ascii_hexdigit())
        .then(|| u8::from_str_radix(text, 16).ok())?
}
