//! In: the inputs that a model has; out: what it is given from run to run. To train, a batch is new each step: windows of
//! kiln's own texts for models of tokens, images of digits for others, so that the loss is of something that can be
//! learnt. Knows neither egui nor threads.

use kiln::graph::{DROPOUT_COUNTER, Op, TensorType};
use kiln::model::Vocabulary;
use kiln::{Graph, Tensor};
use std::collections::BTreeMap;

/// What a GPTlite of the panel's own reads: the character model's texts, as far as its vocabulary goes.
const TEXTS: [&str; 3] = [
    include_str!("../../../README.md"),
    include_str!("../../../ARCHITECTURE.md"),
    include_str!("../../../docs/semantics.md"),
];

/// Images of 8 × 8 and their digits; see examples/data/README.md.
const DIGITS: &str = include_str!("../../../examples/data/digits.csv");

/// Pixels of an image.
const PIXELS: usize = 64;

/// A model's inputs, one set a run.
pub struct Batches {
    kind: Kind,
    drawn: u64,
}

enum Kind {
    Made(Vec<(String, Tensor)>),
    Text { tokens: Vec<i32>, ty: TensorType },
    Digits { images: Vec<([f64; PIXELS], i32)>, input: TensorType, classes: usize },
}

/// The characters that the texts have most of.
pub fn vocabulary(size: usize) -> Result<Vocabulary, String> {
    let mut counts: BTreeMap<char, usize> = BTreeMap::new();
    TEXTS.iter().flat_map(|t| t.chars()).for_each(|c| *counts.entry(c).or_default() += 1);
    let mut chars: Vec<(char, usize)> = counts.into_iter().collect();
    chars.sort_by_key(|(c, n)| (std::cmp::Reverse(*n), *c));
    let mut chars: Vec<char> = chars.into_iter().take(size).map(|(c, _)| c).collect();
    chars.sort_unstable();
    Vocabulary::new(chars).map_err(|e| e.to_string())
}

impl Batches {
    /// The same numbers each run, not all alike; indices stay below every bound.
    pub fn made(graph: &Graph) -> Batches {
        let bounds = graph.index_bounds();
        let input = |(id, node): (kiln::graph::NodeId, &kiln::graph::Node)| {
            let ty = node.outputs[0].clone();
            let least = bounds.iter().filter(|b| b.0 == id).map(|b| b.1.count).min();
            let value = |i: usize| match least {
                Some(bound) => (i * 7 % bound.max(1)) as f64,
                None if ty.dtype.is_integer() => 0.0,
                None => ((i * 7919 % 2003) as f64 - 1001.0) / 578.0,
            };
            let values: Vec<f64> = (0..ty.shape.elements()).map(value).collect();
            (node.name.clone(), Tensor::from_f64(ty, &values))
        };
        // the counter of dropout is the trainer's to give
        let given = |(id, n): &(kiln::graph::NodeId, &kiln::graph::Node)| {
            n.op == Op::Input && !graph.is_state(*id) && n.name != DROPOUT_COUNTER
        };
        Batches { kind: Kind::Made(graph.nodes().filter(given).map(input).collect()), drawn: 0 }
    }

    /// Windows of the texts, for the inputs "tokens" and "targets" of a training of that vocabulary.
    ///
    /// # Errors
    /// In words, if a window is longer than the texts.
    pub fn text(graph: &Graph, vocabulary: &Vocabulary) -> Result<Batches, String> {
        let ty = input_type(graph, "tokens")?;
        let known = |c: &char| vocabulary.encode(c.encode_utf8(&mut [0; 4])).is_ok();
        let text: String = TEXTS.iter().flat_map(|t| t.chars()).filter(known).collect();
        let tokens = vocabulary.encode(&text).map_err(|e| e.to_string())?;
        let block = ty.shape.dims()[1];
        if tokens.len() <= block {
            let have = tokens.len();
            return Err(format!(
                "the texts have {have} characters of this vocabulary, expected more than the {block} positions; take fewer"
            ));
        }
        Ok(Batches { kind: Kind::Text { tokens, ty }, drawn: 0 })
    }

    /// Digits, for the inputs "input" and "targets" of a training: pixels from −1 to 1 in the first columns, 0 in others.
    ///
    /// # Errors
    /// In words, if the model has no such inputs.
    pub fn digits(graph: &Graph, classes: usize) -> Result<Batches, String> {
        let input = input_type(graph, "input")?;
        let images = DIGITS.lines().map(|line| {
            let mut pixels = [0.0; PIXELS];
            let mut numbers = line.split(',').map(|n| n.parse::<i32>().unwrap_or(0));
            pixels.iter_mut().zip(&mut numbers).for_each(|(p, n)| *p = f64::from(n) / 8.0 - 1.0);
            (pixels, numbers.next().unwrap_or(0))
        });
        Ok(Batches { kind: Kind::Digits { images: images.collect(), input, classes }, drawn: 0 })
    }

    /// What the next run is given.
    pub fn draw(&mut self) -> Vec<(String, Tensor)> {
        let mut drawn = self.drawn;
        let mut place = |places: usize| {
            // the golden ratio's multiples lie evenly in every stretch of them: D. E. Knuth, TAOCP 3, 6.4
            let at = drawn.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            drawn += 1;
            ((u128::from(at) * places as u128) >> 64) as usize
        };
        let batch = match &self.kind {
            Kind::Made(inputs) => inputs.clone(),
            Kind::Text { tokens, ty } => {
                let (rows, block) = (ty.shape.dims()[0], ty.shape.dims()[1]);
                let starts: Vec<usize> = (0..rows).map(|_| place(tokens.len() - block)).collect();
                let from = |shift: usize| {
                    let rows = starts.iter().flat_map(|s| &tokens[s + shift..s + shift + block]);
                    Tensor::i32([starts.len(), block], &rows.copied().collect::<Vec<_>>())
                };
                vec![("tokens".into(), from(0)), ("targets".into(), from(1))]
            }
            Kind::Digits { images, input, classes } => {
                let (rows, columns) = (input.shape.dims()[0], input.shape.dims()[1]);
                let drawn: Vec<&([f64; PIXELS], i32)> = (0..rows).map(|_| &images[place(images.len())]).collect();
                let pixel = |(pixels, _): &&([f64; PIXELS], i32)| {
                    let mut row = vec![0.0; columns];
                    row.iter_mut().zip(pixels).for_each(|(x, p)| *x = *p);
                    row
                };
                let values: Vec<f64> = drawn.iter().flat_map(pixel).collect();
                let targets: Vec<i32> = drawn.iter().map(|(_, digit)| digit % (*classes).max(1) as i32).collect();
                vec![
                    ("input".into(), Tensor::from_f64(input.clone(), &values)),
                    ("targets".into(), Tensor::i32([rows], &targets)),
                ]
            }
        };
        self.drawn = drawn;
        batch
    }
}

fn input_type(graph: &Graph, name: &str) -> Result<TensorType, String> {
    let found = graph.inputs().find(|(_, node)| node.name == name);
    found.map(|(_, node)| node.outputs[0].clone()).ok_or(format!("the model has no input `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig, Loss};

    #[test]
    fn windows_of_text_are_new_each_step_and_targets_one_further() {
        let model = Gptlite::new(GptliteConfig::new(65, 1, 8, 1, 16));
        let graph = model.build_training(3, 16, Loss::CrossEntropy).unwrap();
        let vocabulary = vocabulary(65).unwrap();
        assert_eq!(vocabulary.size(), 65);
        let mut batches = Batches::text(&graph, &vocabulary).unwrap();
        let first = batches.draw();
        let [tokens, targets] = [0, 1].map(|i| first[i].1.to_f64());
        assert_eq!((first[0].0.as_str(), first[1].0.as_str(), tokens.len()), ("tokens", "targets", 48));
        for (row, next) in tokens.chunks(16).zip(targets.chunks(16)) {
            assert_eq!(row[1..], next[..15]);
        }
        assert!(tokens.iter().chain(&targets).all(|t| (0.0..65.0).contains(t)));
        assert_ne!(first, batches.draw());
        let long = Gptlite::new(GptliteConfig::new(65, 1, 8, 1, 60_000));
        let graph = long.build_training(1, 60_000, Loss::CrossEntropy).unwrap();
        let error = Batches::text(&graph, &vocabulary).err().unwrap();
        assert!(
            error.starts_with("the texts have ") && error.ends_with("than the 60000 positions; take fewer"),
            "{error}"
        );
    }

    #[test]
    fn images_fill_the_first_columns_and_every_digit_comes() {
        let graph = Dnn::new(DnnConfig::square(70, 2)).build_training(200, Loss::CrossEntropy).unwrap();
        let mut batches = Batches::digits(&graph, 70).unwrap();
        let batch = batches.draw();
        let (pixels, classes) = (batch[0].1.to_f64(), batch[1].1.to_f64());
        assert!(pixels.chunks(70).all(|row| row[64..].iter().all(|p| *p == 0.0)));
        assert!(pixels.iter().all(|p| (-1.0..=1.0).contains(p)) && pixels.contains(&1.0));
        for digit in 0..10 {
            assert!(classes.contains(&f64::from(digit)), "{digit} of {classes:?}");
        }
        assert_ne!(batch, batches.draw());
        let narrow = Dnn::new(DnnConfig::square(4, 2)).build_training(50, Loss::CrossEntropy).unwrap();
        let classes = Batches::digits(&narrow, 4).unwrap().draw()[1].1.to_f64();
        assert!(classes.iter().all(|c| *c < 4.0));
    }

    #[test]
    fn made_numbers_stay_below_what_they_index() {
        let graph = Gptlite::new(GptliteConfig::new(5, 1, 8, 1, 16)).build(1, 16).unwrap();
        let mut batches = Batches::made(&graph);
        let batch = batches.draw();
        assert_eq!((batch.len(), batch[0].0.as_str()), (1, "tokens"));
        assert!(batch[0].1.to_f64().iter().all(|t| *t < 5.0));
        assert_eq!(batch, batches.draw());
    }
}
