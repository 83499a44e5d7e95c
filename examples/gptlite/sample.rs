//! In: logits; out: the next token: the likeliest, or one drawn among the likeliest.

use kiln::tensor::Tensor;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Picks tokens.
pub struct Sampler {
    temperature: f64,
    top_k: usize,
    rng: ChaCha8Rng,
}

impl Sampler {
    /// Temperature 0 takes the likeliest.
    pub fn new(temperature: f64, top_k: usize, seed: u64) -> Result<Sampler, String> {
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(format!("--temperature must be 0 or more, got {temperature}"));
        }
        Ok(Sampler { temperature, top_k, rng: ChaCha8Rng::seed_from_u64(seed) })
    }

    /// Draws from softmax(logits / temperature) over the `top_k` likeliest, or takes `next`, which the device found.
    pub fn pick(&mut self, logits: &Tensor, next: &Tensor) -> i32 {
        if self.temperature == 0.0 {
            return next.to_f64()[0] as i32;
        }
        let mut ranked: Vec<(usize, f64)> = logits.to_f64().into_iter().enumerate().collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        if self.top_k > 0 {
            ranked.truncate(self.top_k);
        }
        let top = ranked[0].1;
        let weights: Vec<f64> = ranked.iter().map(|(_, l)| ((l - top) / self.temperature).exp()).collect();
        // 53 random bits in [0, 1)
        let uniform = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut left = uniform * weights.iter().sum::<f64>();
        for ((token, _), weight) in ranked.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return *token as i32;
            }
        }
        ranked[0].0 as i32
    }
}
