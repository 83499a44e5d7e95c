//! In: text; out: tokens, and back. Knows nothing of models.

use std::collections::BTreeMap;
use thiserror::Error;

/// The characters that a model knows; a character's token is its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    chars: Vec<char>,
    tokens: BTreeMap<char, i32>,
}

/// A text or token that a vocabulary does not have.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum VocabularyError {
    /// The vocabulary lists a character twice.
    #[error("the vocabulary has {character:?} twice, as tokens {first} and {second}")]
    Duplicate {
        /// The character.
        character: char,
        /// Its first place.
        first: usize,
        /// Its second.
        second: usize,
    },
    /// A character of the text is not in the vocabulary.
    #[error("character {character:?} (U+{:04X}) at position {position} is not in the vocabulary of {size} characters", *character as u32)]
    Character {
        /// The first such character.
        character: char,
        /// How many characters stand before it.
        position: usize,
        /// Characters in the vocabulary.
        size: usize,
    },
    /// A token is not in the vocabulary.
    #[error("token {token} at position {position} is not in the vocabulary, expected 0 to {}", *size as i64 - 1)]
    Token {
        /// The first such token.
        token: i32,
        /// How many tokens stand before it.
        position: usize,
        /// Characters in the vocabulary.
        size: usize,
    },
}

impl Vocabulary {
    /// From characters in the order of their tokens.
    pub fn new(chars: Vec<char>) -> Result<Self, VocabularyError> {
        let mut tokens = BTreeMap::new();
        for (second, &character) in chars.iter().enumerate() {
            if let Some(first) = tokens.insert(character, second as i32) {
                return Err(VocabularyError::Duplicate { character, first: first as usize, second });
            }
        }
        Ok(Vocabulary { chars, tokens })
    }

    /// The number of characters, as many as tokens.
    pub fn size(&self) -> usize {
        self.chars.len()
    }

    /// One token a character; the error names the first character outside.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, VocabularyError> {
        let token = |(position, character)| {
            let unknown = VocabularyError::Character { character, position, size: self.size() };
            self.tokens.get(&character).copied().ok_or(unknown)
        };
        text.chars().enumerate().map(token).collect()
    }

    /// One character a token; the error names the first token outside.
    pub fn decode(&self, tokens: &[i32]) -> Result<String, VocabularyError> {
        let character = |(position, &token): (usize, &i32)| {
            let unknown = VocabularyError::Token { token, position, size: self.size() };
            usize::try_from(token).ok().and_then(|t| self.chars.get(t)).copied().ok_or(unknown)
        };
        tokens.iter().enumerate().map(character).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_the_round_trip() {
        let v = Vocabulary::new(vec!['\n', 'a', 'é', 'z']).unwrap();
        assert_eq!(v.encode("zé\na").unwrap(), [3, 2, 0, 1]);
        assert_eq!(v.decode(&[3, 2, 0, 1]).unwrap(), "zé\na");
        assert!(v.encode("").unwrap().is_empty());
    }

    #[test]
    fn what_is_outside_is_named() {
        let v = Vocabulary::new(vec!['a', 'é']).unwrap();
        assert_eq!(
            v.encode("aé☃b").unwrap_err().to_string(),
            "character '☃' (U+2603) at position 2 is not in the vocabulary of 2 characters"
        );
        assert_eq!(
            v.encode("a\n").unwrap_err().to_string(),
            r"character '\n' (U+000A) at position 1 is not in the vocabulary of 2 characters"
        );
        for (tokens, text) in [(vec![0, 2], "token 2 at position 1"), (vec![-1], "token -1 at position 0")] {
            assert_eq!(
                v.decode(&tokens).unwrap_err().to_string(),
                format!("{text} is not in the vocabulary, expected 0 to 1")
            );
        }
        assert_eq!(
            Vocabulary::new(vec!['b', 'a', 'b']).unwrap_err().to_string(),
            "the vocabulary has 'b' twice, as tokens 0 and 2"
        );
    }
}
