//! In: a text file, or the project's own sources and docs; out: [`Corpus`], its characters as tokens in two parts, and
//! how much of it letters and pairs of letters tell. Knows no models.

use kiln::model::Vocabulary;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

/// A character that makes up less than one in this many is left out of the text.
const RAREST: usize = 50_000;

/// A text as tokens.
pub struct Corpus {
    /// The character of each token, in the order of code points.
    pub vocabulary: Vocabulary,
    /// The first nine tenths.
    pub training: Vec<i32>,
    /// The last tenth.
    pub validation: Vec<i32>,
    /// Characters left out, how often and how many different ones.
    pub left_out: (usize, usize),
    /// A hash of the text, to tell whether a training goes on with the one that it began with.
    pub fingerprint: String,
}

/// How unpredictable a text is, in nats a character.
pub struct Entropies {
    /// By the shares of the characters in the whole text.
    pub unigram: f64,
    /// Given the character before, by the shares of the pairs in the whole text: no table of pairs does better on it.
    pub bigram: f64,
    /// What a table of pairs, counted on the training part, each pair once more, gives on the validation part.
    pub bigram_held_out: f64,
}

impl Corpus {
    /// Of a text. A vocabulary that is given stays, and what it lacks is left out.
    pub fn new(text: &str, vocabulary: Option<Vocabulary>) -> Result<Corpus, Box<dyn Error>> {
        let text = text.replace("\r\n", "\n");
        let mut counts: BTreeMap<char, usize> = BTreeMap::new();
        text.chars().for_each(|c| *counts.entry(c).or_default() += 1);
        let total: usize = counts.values().sum();
        let vocabulary = match vocabulary {
            Some(given) => given,
            None => Vocabulary::new(counts.iter().filter(|(_, n)| **n * RAREST >= total).map(|(c, _)| *c).collect())?,
        };
        let kept = |c: &char| vocabulary.encode(c.encode_utf8(&mut [0; 4])).is_ok();
        counts.retain(|c, _| !kept(c));
        let text: String = text.chars().filter(|c| !counts.contains_key(c)).collect();
        let mut training = vocabulary.encode(&text)?;
        let validation = training.split_off(training.len() - training.len() / 10);
        let left_out = (counts.values().sum(), counts.len());
        let fingerprint = format!("{:016x}", fnv1a(text.as_bytes()));
        Ok(Corpus { vocabulary, training, validation, left_out, fingerprint })
    }

    /// How unpredictable it is.
    pub fn entropies(&self) -> Entropies {
        let all: Vec<i32> = self.training.iter().chain(&self.validation).copied().collect();
        let size = self.vocabulary.size() as f64;
        let (singles, firsts, pairs) =
            (counts(all.iter()), counts(all[..all.len() - 1].iter()), counts(all.windows(2)));
        let n = all.len() as f64;
        let unigram = singles.values().map(|c| -c / n * (c / n).ln()).sum();
        let bigram = pairs.iter().map(|(pair, c)| -c / (n - 1.0) * (c / firsts[&pair[0]]).ln()).sum();
        let (firsts, pairs) = (counts(self.training.iter()), counts(self.training.windows(2)));
        let share =
            |pair: &[i32]| (pairs.get(pair).unwrap_or(&0.0) + 1.0) / (firsts.get(&pair[0]).unwrap_or(&0.0) + size);
        let losses = self.validation.windows(2).map(|pair| -share(pair).ln());
        let bigram_held_out = losses.sum::<f64>() / (self.validation.len() - 1) as f64;
        Entropies { unigram, bigram, bigram_held_out }
    }
}

fn counts<T: Ord>(items: impl Iterator<Item = T>) -> BTreeMap<T, f64> {
    let mut counts = BTreeMap::new();
    items.for_each(|item| *counts.entry(item).or_default() += 1.0);
    counts
}

/// Fowler, Noll and Vo's hash, 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The text of a file, or of the project.
pub fn read(file: Option<&Path>) -> Result<String, Box<dyn Error>> {
    match file {
        Some(file) => Ok(std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?),
        None => project(Path::new(env!("CARGO_MANIFEST_DIR"))),
    }
}

/// Everything under src/, shaders/ and docs/ that is Rust, WGSL or Markdown, and the Markdown beside them, in the order
/// of paths.
fn project(root: &Path) -> Result<String, Box<dyn Error>> {
    let mut files = Vec::new();
    for folder in ["src", "shaders", "docs"] {
        collect(&root.join(folder), true, &mut files)?;
    }
    collect(root, false, &mut files)?;
    files.retain(|path| path.extension().is_some_and(|e| e == "rs" || e == "wgsl" || e == "md"));
    files.sort();
    let mut text = String::new();
    for file in files {
        text += &std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(text)
}

fn collect(folder: &Path, deep: bool, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    let entries = std::fs::read_dir(folder)
        .map_err(|e| format!("{}: {e}; train on a file of your own with --text", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_file() => files.push(entry.path()),
            kind if kind.is_dir() && deep => collect(&entry.path(), deep, files)?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_characters_are_left_out_and_a_tenth_is_held_out() {
        let text = "ab".repeat(RAREST) + "é\r\n";
        let corpus = Corpus::new(&text, None).unwrap();
        assert_eq!(corpus.vocabulary, Vocabulary::new(vec!['a', 'b']).unwrap());
        assert_eq!(corpus.left_out, (2, 2));
        assert_eq!((corpus.training.len(), corpus.validation.len()), (RAREST * 9 / 5, RAREST / 5));
        let again = Corpus::new("abcab", Some(corpus.vocabulary)).unwrap();
        assert_eq!((again.training, again.left_out), (vec![0, 1, 0, 1], (1, 1)));
    }

    #[test]
    fn entropies_of_texts_that_are_known() {
        // every second character follows from the one before, and both are as frequent
        let alternating = Corpus::new(&"ab".repeat(500), None).unwrap().entropies();
        assert!((alternating.unigram - 2f64.ln()).abs() < 1e-12);
        assert!(alternating.bigram.abs() < 1e-12);
        assert!(alternating.bigram_held_out > 0.0 && alternating.bigram_held_out < 0.01);
        let one = Corpus::new(&"a".repeat(100), None).unwrap().entropies();
        assert_eq!((one.unigram, one.bigram), (0.0, 0.0));
    }

    #[test]
    fn the_projects_own_text_is_found() {
        let corpus = Corpus::new(&read(None).unwrap(), None).unwrap();
        assert!(corpus.training.len() > 500_000);
        assert!(corpus.left_out.0 * 1000 < corpus.training.len());
        assert!(read(Some(Path::new("nowhere"))).unwrap_err().to_string().starts_with("nowhere: "));
    }
}
