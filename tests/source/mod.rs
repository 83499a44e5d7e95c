//! In: a Rust file's text; out: its tokens without comments and strings, and the paths in it that start at `crate`,
//! `super` or `self`. Knows as much of Rust's grammar as paths need.

/// An identifier, `::`, or one other character.
pub struct Token {
    /// Its text.
    pub text: String,
    /// Its line, from 1.
    pub line: usize,
}

/// A path from the root of the crate: `crate::graph::{Op, DType}` is two of them.
#[derive(Debug)]
pub struct CratePath {
    /// Its names below the root; the last may be `*`.
    pub names: Vec<String>,
    /// The line of its last name.
    pub line: usize,
}

/// The module of a file, given relative to src/: `graph/op.rs` is `[graph, op]`, `lib.rs` is the root.
pub fn module_of(file: &str) -> Vec<String> {
    let stem = file.trim_end_matches(".rs");
    let mut names: Vec<String> = stem.split('/').map(String::from).collect();
    if stem == "lib" || names.last().is_some_and(|n| n == "mod") {
        names.pop();
    }
    names
}

/// The text's tokens; comments, strings, characters and lifetimes are left out.
pub fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut tokens = Vec::new();
    let (mut i, mut line) = (0, 1);
    while i < chars.len() {
        let start = i;
        match chars[i] {
            '/' if at(i + 1) == '/' => i = skip_line(&chars, i),
            '/' if at(i + 1) == '*' => i = skip_block(&chars, i),
            '"' => i = skip_string(&chars, i),
            '\'' if at(i + 1) == '\\' => i = skip_char(&chars, i),
            '\'' if at(i + 2) == '\'' => i += 3,
            '\'' => i += 1 + chars[i + 1..].iter().take_while(|c| is_name(**c)).count(),
            c if is_name(c) => {
                i += chars[i..].iter().take_while(|c| is_name(**c)).count();
                let name: String = chars[start..i].iter().collect();
                let raw = matches!(name.as_str(), "r" | "br" | "cr");
                let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
                if raw && at(i + hashes) == '"' {
                    i = skip_raw(&chars, i + hashes, hashes);
                } else {
                    tokens.push(Token { text: name, line });
                }
            }
            ':' if at(i + 1) == ':' => {
                i += 2;
                tokens.push(Token { text: "::".into(), line });
            }
            c => {
                i += 1;
                if !c.is_whitespace() {
                    tokens.push(Token { text: c.into(), line });
                }
            }
        }
        i = i.min(chars.len());
        line += chars[start..i].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn skip_line(chars: &[char], i: usize) -> usize {
    i + chars[i..].iter().take_while(|c| **c != '\n').count()
}

/// Past a block comment, which may hold others.
fn skip_block(chars: &[char], mut i: usize) -> usize {
    let mut depth = 0;
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

fn skip_string(chars: &[char], mut i: usize) -> usize {
    i += 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

/// Past a character that starts with an escape.
fn skip_char(chars: &[char], i: usize) -> usize {
    i + 3 + chars[i + 3..].iter().take_while(|c| **c != '\'').count() + 1
}

/// Past a raw string whose quote is at `quote`.
fn skip_raw(chars: &[char], quote: usize, hashes: usize) -> usize {
    let mut i = quote + 1;
    while i < chars.len()
        && !(chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes)
    {
        i += 1;
    }
    i + 1 + hashes
}

/// Every path from `crate`, `super` or `self` in a file of this module, resolved from the root of the crate.
pub fn paths(tokens: &[Token], module: &[String]) -> Vec<CratePath> {
    let text = |i: usize| tokens.get(i).map_or("", |t: &Token| t.text.as_str());
    let mut found = Vec::new();
    // the module at hand, and for each open brace whether it opened an inline module
    let (mut here, mut braces) = (module.to_vec(), Vec::new());
    for i in 0..tokens.len() {
        match text(i) {
            "{" => {
                let inline = i >= 2 && text(i - 2) == "mod";
                if inline {
                    here.push(text(i - 1).into());
                }
                braces.push(inline);
            }
            "}" => {
                let inline = braces.pop() == Some(true);
                here.truncate(here.len() - usize::from(inline));
            }
            "crate" if text(i + 1) == "as" => found.push(CratePath { names: Vec::new(), line: tokens[i].line }),
            "crate" | "super" | "self" if text(i + 1) == "::" && (i == 0 || text(i - 1) != "::") => {
                tree(tokens, i, &here, &mut found);
            }
            _ => {}
        }
    }
    found
}

/// Reads one use tree from `i`: names below `prefix`, with groups. Returns the index past it.
fn tree(tokens: &[Token], mut i: usize, prefix: &[String], found: &mut Vec<CratePath>) -> usize {
    let text = |i: usize| tokens.get(i).map_or("", |t: &Token| t.text.as_str());
    let mut names = prefix.to_vec();
    let mut line = tokens.get(i).map_or(0, |t| t.line);
    loop {
        match text(i) {
            "{" => {
                i += 1;
                while !matches!(text(i), "}" | "") {
                    i = tree(tokens, i, &names, found);
                    // past a renaming and the comma
                    while !matches!(text(i), "," | "}" | "") {
                        i += 1;
                    }
                    i += usize::from(text(i) == ",");
                }
                return i + 1;
            }
            "crate" => names.clear(),
            "super" => {
                names.pop();
            }
            "self" => {}
            "*" => names.push("*".into()),
            name if name.starts_with(is_name) => names.push(name.into()),
            // a turbofish or the end of the file
            _ => break,
        }
        line = tokens[i].line;
        i += 1;
        if text(i) != "::" {
            break;
        }
        i += 1;
    }
    found.push(CratePath { names, line });
    i
}
