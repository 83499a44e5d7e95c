//! In: the number of a step; out: its learning rate. Knows nothing else of training.

use std::f64::consts::PI;

/// A learning rate over the steps of a training: a linear warm-up to `rate`, then `rate`, or a cosine down from it.
///
/// ```
/// use kiln::train::Schedule;
/// let schedule = Schedule::constant(1e-3).warm_up(10).cosine(100, 1e-4);
/// assert_eq!(schedule.at(0), 1e-4); // a tenth: the first of ten steps of warm-up
/// assert_eq!(schedule.at(9), 1e-3);
/// assert_eq!(schedule.at(55), 5.5e-4); // half-way between steps 10 and 100
/// assert_eq!(schedule.at(1000), 1e-4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest rate.
    pub rate: f64,
    /// Steps in which it rises linearly; the last of them has the full rate. 0 for none.
    pub warmup: u64,
    /// What follows the warm-up; `None` stays at `rate`.
    pub cosine: Option<Cosine>,
}

/// Half a cosine from the highest rate to a lowest, which stays (Loshchilov and Hutter, arXiv 1608.03983, without
/// restarts).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cosine {
    /// The step at which the lowest rate is reached, counted from 0, warm-up included.
    pub until: u64,
    /// The lowest rate.
    pub minimum: f64,
}

impl Schedule {
    /// The same rate at every step.
    pub fn constant(rate: f64) -> Self {
        Schedule { rate, warmup: 0, cosine: None }
    }

    /// With a linear rise over the first steps.
    pub fn warm_up(self, steps: u64) -> Self {
        Schedule { warmup: steps, ..self }
    }

    /// With a fall along a cosine from the end of the warm-up until step `until`, and `minimum` from there on.
    pub fn cosine(self, until: u64, minimum: f64) -> Self {
        Schedule { cosine: Some(Cosine { until, minimum }), ..self }
    }

    /// The rate of a step; the first step is 0.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.rate * (step + 1) as f64 / self.warmup as f64;
        }
        match self.cosine {
            None => self.rate,
            Some(Cosine { until, minimum }) if step >= until => minimum,
            Some(Cosine { until, minimum }) => {
                let part = (step - self.warmup) as f64 / (until - self.warmup) as f64;
                minimum + (self.rate - minimum) * (1.0 + (PI * part).cos()) / 2.0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_rate_stays() {
        let schedule = Schedule::constant(3e-4);
        assert!([0, 1, 1_000_000].iter().all(|s| schedule.at(*s) == 3e-4));
    }

    #[test]
    fn a_warm_up_rises_linearly_and_ends_at_the_rate() {
        let schedule = Schedule::constant(1.0).warm_up(4);
        let rates: Vec<f64> = (0..6).map(|s| schedule.at(s)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn a_cosine_falls_from_the_rate_to_its_minimum_and_stays() {
        let schedule = Schedule::constant(1.0).cosine(8, 0.2);
        assert_eq!(schedule.at(0), 1.0);
        assert!((schedule.at(2) - (0.2 + 0.8 * (1.0 + 0.5f64.sqrt()) / 2.0)).abs() < 1e-15);
        assert!((schedule.at(4) - 0.6).abs() < 1e-15);
        assert_eq!([schedule.at(8), schedule.at(9), schedule.at(u64::MAX)], [0.2; 3]);
        assert!((0..8).all(|s| schedule.at(s) > schedule.at(s + 1)));
    }

    #[test]
    fn a_cosine_starts_where_the_warm_up_ends() {
        let schedule = Schedule::constant(1.0).warm_up(5).cosine(15, 0.0);
        assert_eq!([schedule.at(4), schedule.at(5)], [1.0, 1.0]);
        assert!((schedule.at(10) - 0.5).abs() < 1e-15);
        assert_eq!(schedule.at(15), 0.0);
        // a cosine that would end within the warm-up never falls
        let never = Schedule::constant(1.0).warm_up(5).cosine(3, 0.0);
        assert_eq!([never.at(2), never.at(4), never.at(5)], [0.6, 1.0, 0.0]);
    }
}
