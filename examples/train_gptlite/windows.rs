//! In: a part of a text as tokens; out: windows of it as batches, drawn for a step or laid out to evaluate. Knows
//! nothing of models.

use kiln::tensor::Tensor;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::error::Error;

/// Inputs of a step: tokens, and as targets the tokens one further.
pub type Batch = [(&'static str, Tensor); 2];

/// Windows of a text.
pub struct Windows<'a> {
    tokens: &'a [i32],
    batch: usize,
    block: usize,
}

impl<'a> Windows<'a> {
    /// Batches of `batch` windows of `block` tokens.
    pub fn new(what: &str, tokens: &'a [i32], batch: usize, block: usize) -> Result<Self, Box<dyn Error>> {
        if batch == 0 {
            return Err("--batch is 0, expected at least 1".into());
        }
        if tokens.len() <= block {
            let got = tokens.len();
            return Err(format!(
                "the {what} part of the text has {got} characters, expected more than --block = {block}; \
                 give a longer text or a smaller block"
            )
            .into());
        }
        Ok(Windows { tokens, batch, block })
    }

    /// The batch of a step, which depends on the seed and the step's number alone.
    pub fn of_step(&self, seed: u64, step: u64) -> Batch {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(step);
        let places = (self.tokens.len() - self.block) as u128;
        // the upper half of the product is even over the places, but for 2^-64 of them
        let starts = (0..self.batch).map(|_| ((u128::from(rng.next_u64()) * places) >> 64) as usize);
        self.at(&starts.collect::<Vec<_>>())
    }

    /// Batches whose windows lie evenly over the whole part: as many as cover it, or at most so many.
    pub fn even(&self, most: usize) -> Vec<Batch> {
        let last = self.tokens.len() - self.block - 1;
        let cover = self.tokens.len().div_ceil(self.block);
        let batches = cover.div_ceil(self.batch).min(most);
        let windows = batches * self.batch;
        let starts: Vec<usize> = (0..windows).map(|i| i * last / (windows - 1).max(1)).collect();
        starts.chunks(self.batch).map(|starts| self.at(starts)).collect()
    }

    /// Tokens and targets from each start on.
    fn at(&self, starts: &[usize]) -> Batch {
        let shape = [self.batch, self.block];
        let from = |shift: usize| {
            let tokens = starts.iter().flat_map(|s| &self.tokens[s + shift..s + shift + self.block]);
            Tensor::i32(shape, &tokens.copied().collect::<Vec<_>>())
        };
        [("tokens", from(0)), ("targets", from(1))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(batch: &Batch) -> [Vec<f64>; 2] {
        batch.each_ref().map(|(_, tensor)| tensor.to_f64())
    }

    #[test]
    fn a_batch_follows_from_seed_and_step() {
        let tokens: Vec<i32> = (0..1000).collect();
        let windows = Windows::new("training", &tokens, 4, 16).unwrap();
        let [inputs, targets] = numbers(&windows.of_step(7, 3));
        assert!(inputs.iter().zip(&targets).all(|(i, t)| i + 1.0 == *t), "targets are one further");
        assert!(inputs.chunks(16).all(|w| w.windows(2).all(|pair| pair[0] + 1.0 == pair[1])), "windows have no gaps");
        assert_eq!(numbers(&windows.of_step(7, 3)), [inputs.clone(), targets]);
        for (seed, step) in [(7, 4), (8, 3)] {
            assert_ne!(numbers(&windows.of_step(seed, step))[0], inputs);
        }
    }

    #[test]
    fn the_last_character_can_be_a_target() {
        let tokens: Vec<i32> = (0..6).collect();
        let windows = Windows::new("training", &tokens, 2, 4).unwrap();
        let last = (0..20).map(|step| numbers(&windows.of_step(0, step))[1].iter().fold(0.0, |m: f64, t| m.max(*t)));
        assert_eq!(last.fold(0.0, f64::max), 5.0);
    }

    #[test]
    fn even_windows_cover_the_whole_part() {
        let tokens: Vec<i32> = (0..103).collect();
        let windows = Windows::new("validation", &tokens, 4, 10).unwrap();
        let mut seen: Vec<f64> = windows.even(usize::MAX).iter().flat_map(|b| numbers(b)[1].clone()).collect();
        seen.sort_by(f64::total_cmp);
        seen.dedup();
        assert_eq!(seen, (1..103).map(f64::from).collect::<Vec<_>>());
        assert_eq!(windows.even(2).len(), 2);
    }

    #[test]
    fn a_text_that_is_too_short_is_refused() {
        let error = Windows::new("validation", &[0; 16], 4, 16).err().unwrap().to_string();
        assert_eq!(
            error,
            "the validation part of the text has 16 characters, expected more than --block = 16; give a longer text or a \
             smaller block"
        );
        assert_eq!(
            Windows::new("training", &[0; 16], 0, 4).err().unwrap().to_string(),
            "--batch is 0, expected at least 1"
        );
    }
}
