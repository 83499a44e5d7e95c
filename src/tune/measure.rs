//! In: the candidates of a decision; out: [`Outcome`], the time of each that compiles and gives what the first gives.
//! Knows nothing of what they compute.
//!
//! All candidates run over the same buffers of random numbers, of which there are several, together larger than a
//! cache. They take turns, so that a device whose speed drifts treats them alike.

use super::Device;
use super::work::{Space, Work};
use crate::gpu::{Content, Executable, ExecutableOptions, GpuError, Profiling, Submission};
use crate::graph::DType;
use crate::kernel::{Config, Numbers};
use crate::plan::plan;
use crate::record::{BufferId, lower};
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// One way of several, and what it launches.
pub(super) struct Candidate {
    pub config: Config,
    pub work: Work,
}

/// What became of the candidates.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Least times, the model's choice first.
    pub times: Vec<(Config, Duration)>,
    /// What was left out and why.
    pub dropped: Vec<(Config, String)>,
}

/// Rounds of timing at most, and those after which what is much slower than the best is timed no more.
const ROUNDS: usize = 9;
const FIRST_ROUNDS: usize = 2;
/// How much slower it is.
const MUCH: f64 = 1.5;

/// Bytes of inputs that are gone through before one is read again: more than caches hold.
fn spread(cpu: bool) -> u64 {
    if cpu { 16 << 20 } else { 160 << 20 }
}

/// How long a device is kept busy ahead of the first round: while candidates are compiled it idles, and a GPU's clock, which
/// falls then, takes so long to rise again that candidates of one round would not be timed alike.
fn warm_up(cpu: bool) -> Duration {
    if cpu { Duration::ZERO } else { Duration::from_millis(300) }
}

/// Runs in flight meanwhile.
const IN_FLIGHT: usize = 4;

/// Times candidates, the first of which is the model's choice and must run.
pub(super) fn measure(
    device: &Device,
    candidates: Vec<Candidate>,
    deadline: Option<Instant>,
) -> Result<Outcome, GpuError> {
    let mut outcome = Outcome::default();
    let mut candidates = candidates.into_iter();
    let Some(own) = candidates.next() else { return Ok(outcome) };
    let copies = spread(device.caps.cpu).div_ceil(own.work.input_bytes().max(1)).clamp(1, 16) as usize;
    let options = ExecutableOptions { checked: device.checked, poison: false, timestamps: device.caps.timestamps };
    let recording = |work: &Work| {
        let selected = work.program(copies);
        lower(&selected, &plan(&selected, false), device.caps)
    };
    let shared = own.work.shared(copies);
    let base = match Executable::new(device.gpu, recording(&own.work), options, contents(&shared)) {
        // not even one fits beside what the program's owner holds
        Err(error @ (GpuError::OutOfMemory { .. } | GpuError::Limit { .. })) => {
            outcome.dropped.push((own.config, error.to_string()));
            return Ok(outcome);
        }
        base => base?,
    };
    let others: Vec<Candidate> = candidates.collect();
    let make = |c: &Candidate| match c.work.is_like(&own.work) {
        true => base.beside(recording(&c.work), shared.len(), options),
        false => Err(GpuError::Kernel {
            kernel: "the candidate".into(),
            node: String::new(),
            reason: "it reads or writes other tensors".into(),
            excerpt: String::new(),
        }),
    };
    let made = at_once(&others, make);
    let mut running = vec![Running { config: own.config, executable: base, least: Duration::MAX }];
    let results = own.work.results.len();
    let expected = running[0].results(&shared[..results])?;
    let tolerance: Vec<f64> =
        shared[..results].iter().map(|s| tolerance(s.numbers.dtype(), own.work.terms())).collect();
    for (candidate, made) in others.iter().zip(made) {
        let config = candidate.config;
        let next = match made {
            Ok(executable) => Running { config, executable, least: Duration::MAX },
            Err(error @ (GpuError::Lost { .. } | GpuError::Refused { .. })) => return Err(error),
            Err(error) => {
                let words = error.to_string();
                outcome.dropped.push((config, words.lines().next().unwrap_or_default().to_owned()));
                continue;
            }
        };
        let got = next.results(&shared[..results])?;
        let worst = (expected.iter().zip(&got).zip(&tolerance)).map(|((e, g), t)| (difference(e, g), *t));
        match worst.clone().find(|(d, t)| d.is_nan() || d > t) {
            Some((d, t)) => {
                outcome.dropped.push((config, format!("its results are off by {d:.1e}, allowed {t:.1e}")));
            }
            None => running.push(next),
        }
    }
    running[0].keep_busy(warm_up(device.caps.cpu))?;
    for round in 0..ROUNDS {
        for candidate in &mut running {
            candidate.sample(copies, candidate_launches(&own.work, &others, candidate.config))?;
        }
        let best = running.iter().map(|r| r.least).min().unwrap_or_default();
        if round + 1 == FIRST_ROUNDS {
            let own = running[0].config;
            let slow = |r: &Running| r.config != own && r.least.as_secs_f64() > MUCH * best.as_secs_f64();
            outcome.times.extend(running.iter().filter(|r| slow(r)).map(Running::time));
            running.retain(|r| !slow(r));
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break;
        }
    }
    outcome.times.splice(0..0, running.iter().map(Running::time));
    Ok(outcome)
}

/// Launches of one pass over a candidate's work.
fn candidate_launches(own: &Work, others: &[Candidate], config: Config) -> usize {
    others.iter().find(|c| c.config == config).map_or(own, |c| &c.work).launches()
}

/// Calls `f` for each, on all threads, and gives the results in order. A panic goes on.
fn at_once<T: Sync, U: Send>(all: &[T], f: impl Fn(&T) -> U + Sync) -> Vec<U> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        while let Some((i, item)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, all.get(i)?))) {
            made.push((i, f(item)));
        }
        made
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(all.len());
    let mut made = match threads {
        0 | 1 => work(),
        _ => std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            handles.into_iter().flat_map(|h| h.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        }),
    };
    made.sort_by_key(|(i, _)| *i);
    made.into_iter().map(|(_, value)| value).collect()
}

/// A candidate that runs.
struct Running {
    config: Config,
    executable: Executable,
    /// The least of its times: what else a machine does only ever adds to them.
    least: Duration,
}

impl Running {
    fn time(&self) -> (Config, Duration) {
        (self.config, self.least)
    }

    /// Runs for so long without a pause, and once at least.
    fn keep_busy(&self, long: Duration) -> Result<(), GpuError> {
        let begin = Instant::now();
        let mut flying = VecDeque::new();
        loop {
            flying.push_back(self.executable.submit(&[Vec::new()], Submission::default())?);
            if begin.elapsed() >= long {
                return flying.into_iter().try_for_each(|run| run.wait().map(drop));
            }
            if flying.len() > IN_FLIGHT
                && let Some(oldest) = flying.pop_front()
            {
                oldest.wait()?;
            }
        }
    }

    /// Runs once and notes the time of each copy: by timestamps, or that of all of them by the clock.
    fn sample(&mut self, copies: usize, launches: usize) -> Result<(), GpuError> {
        let begin = Instant::now();
        let how = Submission { split: None, profile: Some(Profiling::Exact), read: false };
        let finished = self.executable.submit(&[Vec::new()], how)?.wait()?;
        let wall = begin.elapsed() / copies as u32;
        let of_copy = |times: &[Option<(u64, u64)>]| {
            let (first, last) = (times.first().copied().flatten()?, times.last().copied().flatten()?);
            Some(Duration::from_nanos(last.1.saturating_sub(first.0)))
        };
        let stamped: Option<Vec<Duration>> = match finished.times.is_empty() {
            true => None,
            false => finished.times.chunks(launches.max(1)).map(of_copy).collect(),
        };
        let stamped = stamped.filter(|all| all.iter().any(|d| !d.is_zero()));
        let least = stamped.and_then(|all| all.into_iter().min()).unwrap_or(wall);
        self.least = self.least.min(least);
        Ok(())
    }

    /// Runs once over what results hold at first, and gives parts of them.
    fn results(&self, results: &[&Space]) -> Result<Vec<Vec<f64>>, GpuError> {
        for (i, space) in results.iter().enumerate() {
            for window in windows(space.bytes) {
                let bytes = random(i, space, window);
                self.executable.write(BufferId(i), window * WINDOW, &bytes)?;
            }
        }
        self.executable.submit(&[Vec::new()], Submission::default())?.wait()?;
        let read = |(i, space): (usize, &&Space)| {
            let mut numbers = Vec::new();
            for window in windows(space.bytes) {
                let bytes = window_bytes(space, window);
                numbers
                    .extend(values(space.numbers.dtype(), &self.executable.read(BufferId(i), window * WINDOW, bytes)?));
            }
            Ok(numbers)
        };
        results.iter().enumerate().map(read).collect()
    }
}

/// Bytes of a window of a tensor: what is drawn, compared and written at once.
const WINDOW: u64 = 1 << 20;
/// Windows of a result that are compared at most, the first and the last among them.
const COMPARED: u64 = 16;

/// The windows of a result that are compared.
fn windows(bytes: u64) -> impl Iterator<Item = u64> {
    let all = bytes.div_ceil(WINDOW);
    let some = all.min(COMPARED);
    (0..some).map(move |i| if some < 2 { i } else { i * (all - 1) / (some - 1) })
}

fn window_bytes(space: &Space, window: u64) -> usize {
    WINDOW.min(space.bytes - window * WINDOW) as usize
}

/// What the shared tensors hold at first.
fn contents<'a>(shared: &'a [&Space]) -> impl Iterator<Item = Result<Content, GpuError>> + 'a {
    shared.iter().enumerate().filter(|(_, space)| space.bytes > 0).map(|(i, space)| {
        let mut bytes = Vec::with_capacity(space.bytes as usize);
        (0..space.bytes.div_ceil(WINDOW)).for_each(|window| bytes.extend(random(i, space, window)));
        Ok(Content { buffer: BufferId(i), offset: 0, bytes })
    })
}

/// A window of a tensor's numbers, which depend on its index and the window's alone: random floats as large as suits it,
/// words below 2³⁰, which as lengths are all there is and as floats are finite, the exponent of what is below 1.
fn random(index: usize, space: &Space, window: u64) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64((index as u64) << 32 | window);
    let mut bytes = vec![0; window_bytes(space, window)];
    rng.fill_bytes(&mut bytes);
    match space.numbers {
        Numbers::Any(DType::F16, size) => bytes.chunks_exact_mut(2).for_each(|b| {
            let number = f32::from(u16::from_le_bytes([b[0], b[1]])) / 32_768.0 - 1.0;
            b.copy_from_slice(&f16::from_f32(number * size).to_le_bytes());
        }),
        Numbers::Any(DType::F32, size) => bytes.chunks_exact_mut(4).for_each(|b| {
            let bits = u32::from_le_bytes([b[0], b[1], b[2], b[3]]) >> 8;
            b.copy_from_slice(&((bits as f32 / 8_388_608.0 - 1.0) * size).to_le_bytes());
        }),
        Numbers::Any(..) => bytes.chunks_exact_mut(4).for_each(|b| b[3] &= 0x3f),
        Numbers::Exponents => bytes.chunks_exact_mut(4).for_each(|b| b.copy_from_slice(&126u32.to_le_bytes())),
    }
    bytes
}

/// The numbers in bytes of a float type.
fn values(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
        _ => bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect(),
    }
}

/// ‖got − expected‖ / ‖expected‖; NaN where one has a number that is not finite and the other does not.
fn difference(expected: &[f64], got: &[f64]) -> f64 {
    let (mut apart, mut size) = (0.0, 0.0);
    for (e, g) in expected.iter().zip(got) {
        let same = e == g || e.is_nan() && g.is_nan();
        if !same {
            apart += (e - g) * (e - g);
        }
        if e.is_finite() {
            size += e * e;
        }
    }
    match (apart, size) {
        (0.0, _) => 0.0,
        (apart, 0.0) => apart.sqrt(),
        (apart, size) => (apart / size).sqrt(),
    }
}

/// How far two orders of adding so many terms may be apart: rounding grows with the root of their number, and results
/// are rounded once more to their type.
fn tolerance(dtype: DType, terms: f64) -> f64 {
    let stored = if dtype == DType::F16 { 1.0 / 512.0 } else { 1e-6 };
    stored + 4.0 * f64::from(f32::EPSILON) * terms.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_the_whole_of_a_small_result_and_reach_both_ends_of_a_large_one() {
        let of = |bytes| windows(bytes).collect::<Vec<_>>();
        assert!(of(0).is_empty());
        assert_eq!(of(5), [0]);
        assert_eq!(of(3 * WINDOW), [0, 1, 2]);
        let large = of(1000 * WINDOW + 1);
        assert_eq!((large.len(), large[0], large[15]), (16, 0, 1000));
    }

    #[test]
    fn a_difference_sees_one_wrong_number_and_any_that_is_not_finite() {
        let expected = [1.0, -2.0, f64::NAN, f64::INFINITY];
        assert_eq!(difference(&expected, &expected), 0.0);
        assert!(difference(&expected, &[1.0, -2.1, f64::NAN, f64::INFINITY]) > 0.01);
        for other in [f64::NAN, 3.0] {
            let d = difference(&expected, &[1.0, -2.0, f64::NAN, other]);
            assert!(d.is_nan() || d == f64::INFINITY, "{other}: {d}");
            let d = difference(&expected, &[1.0, other * f64::NAN, f64::NAN, f64::INFINITY]);
            assert!(d.is_nan(), "{d}");
        }
    }

    #[test]
    fn random_numbers_depend_on_tensor_and_window_alone_and_fit_their_type() {
        for (dtype, bytes) in [(DType::F32, 4096), (DType::F16, 4098), (DType::U32, 4096)] {
            let space = Space::new(bytes, Numbers::Any(dtype, 1.0));
            let first = random(1, &space, 0);
            assert_eq!(first.len() as u64, bytes);
            assert_eq!(first, random(1, &space, 0));
            assert_ne!(first, random(2, &space, 0));
            if dtype.is_float() {
                let numbers = values(dtype, &first);
                assert!(numbers.iter().all(|v| (-1.0..=1.0).contains(v)));
                let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
                assert!(mean.abs() < 0.1, "{mean}");
            } else {
                assert!(values(DType::F32, &first).iter().all(|v| v.is_finite() && *v >= 0.0));
            }
        }
    }

    #[test]
    fn exponents_are_those_of_the_random_numbers_beside_them() {
        let floats = random(0, &Space::new(4096, Numbers::Any(DType::F32, 1.0)), 0);
        let largest = values(DType::F32, &floats).into_iter().fold(0.0, |most: f64, v| most.max(v.abs()));
        let words = random(1, &Space::new(4096, Numbers::Exponents), 0);
        let exponent = (largest as f32).to_bits() >> 23;
        assert!(words.chunks_exact(4).all(|w| w == exponent.to_le_bytes()), "{exponent}: {words:?}");
    }

    #[test]
    fn a_panic_of_a_thread_that_compiles_goes_on() {
        let all: Vec<usize> = (0..20).collect();
        assert_eq!(at_once(&all, |i| i * 2), (0..20).map(|i| i * 2).collect::<Vec<_>>());
        let panic = std::panic::catch_unwind(|| at_once(&all, |i| assert_ne!(*i, 13, "unlucky")));
        let words = panic.unwrap_err();
        assert!(words.downcast_ref::<String>().unwrap().contains("unlucky"));
    }
}
