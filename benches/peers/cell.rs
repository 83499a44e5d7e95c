//! What the peers' programs share. In: flags of a cell and the parameters that kiln wrote; out: times of runs as lines of
//! JSON, which kiln's runner reads. Knows no peer.

use safetensors::SafeTensors;
use serde_json::json;
use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Batches that take turns.
pub const BATCHES: usize = 3;

/// How long runs in flight warm a program up at least, as in kiln's own: a GPU that idled has low clocks.
const WARM_UP: Duration = Duration::from_secs(1);

/// How many are in flight at most.
const IN_FLIGHT: f64 = 8.0;

/// A cell and its sizes.
#[derive(Debug)]
pub struct Cell {
    pub model: String,
    pub train: bool,
    pub precision: String,
    pub runs: usize,
    pub rows: usize,
    pub width: usize,
    pub depth: usize,
    pub heads: usize,
    pub vocab: usize,
    weights: Vec<u8>,
}

impl Cell {
    /// From `--flag value` pairs.
    pub fn from_args() -> Result<Cell> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let find = |flag: &str| {
            let pair = args.chunks(2).find(|pair| pair[0].strip_prefix("--") == Some(flag));
            pair.and_then(|pair| pair.get(1)).cloned()
        };
        let text = |flag: &str| find(flag).ok_or_else(|| format!("--{flag} is missing"));
        let number =
            |flag: &str| Ok::<usize, Box<dyn Error>>(text(flag)?.parse().map_err(|e| format!("--{flag}: {e}"))?);
        let model = text("model")?;
        let gptlite = model == "gptlite";
        let path = text("weights")?;
        Ok(Cell {
            train: text("phase")? == "train",
            precision: text("precision")?,
            runs: number("runs")?,
            rows: number("rows")?,
            width: number("width")?,
            depth: number("depth")?,
            heads: if gptlite { number("heads")? } else { 1 },
            vocab: if gptlite { number("vocab")? } else { 1 },
            weights: fs::read(&path).map_err(|e| format!("{path}: {e}"))?,
            model,
        })
    }

    pub fn gptlite(&self) -> bool {
        self.model == "gptlite"
    }

    /// Classes of the output.
    pub fn classes(&self) -> usize {
        if self.gptlite() { self.vocab } else { self.width }
    }

    /// The parameters by PyTorch's names.
    pub fn parameters(&self) -> Result<Parameters<'_>> {
        Ok(Parameters(SafeTensors::deserialize(&self.weights)?))
    }

    /// Tokens of a batch; what each position or sample is to be is [`Cell::targets`].
    pub fn tokens(&self, batch: usize) -> Vec<u32> {
        (0..self.rows).map(|i| (fraction(i, 3 + batch) * self.vocab as f32) as u32).collect()
    }

    /// A class for each row.
    pub fn targets(&self, batch: usize) -> Vec<u32> {
        (0..self.rows).map(|i| (fraction(i, batch) * self.classes() as f32) as u32).collect()
    }

    /// (rows, width) of unit variance.
    pub fn samples(&self, batch: usize) -> Vec<f32> {
        (0..self.rows * self.width).map(|i| (2.0 * fraction(i, batch) - 1.0) * 1.732).collect()
    }
}

/// Parameters in f32.
pub struct Parameters<'a>(SafeTensors<'a>);

impl Parameters<'_> {
    pub fn vector(&self, name: &str) -> Result<Vec<f32>> {
        let tensor = self.0.tensor(name).map_err(|e| format!("{name}: {e}"))?;
        let bytes = tensor.data().chunks_exact(4);
        Ok(bytes.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// A linear's weight (out, in) as (in, out).
    pub fn transposed(&self, name: &str) -> Result<Vec<f32>> {
        let shape = self.0.tensor(name).map_err(|e| format!("{name}: {e}"))?.shape().to_vec();
        let from = self.vector(name)?;
        let (rows, columns) = (shape[0], shape[1]);
        let mut to = vec![0.0; from.len()];
        for row in 0..rows {
            for column in 0..columns {
                to[column * rows + row] = from[row * columns + column];
            }
        }
        Ok(to)
    }

    /// The weights (D, E) of a block's heads side by side, as (E, heads · D).
    pub fn heads(&self, cell: &Cell, block: usize, part: &str) -> Result<Vec<f32>> {
        let (width, size) = (cell.width, cell.width / cell.heads);
        let mut all = vec![0.0; width * width];
        for head in 0..cell.heads {
            let one = self.transposed(&format!("blocks.{block}.sa.heads.{head}.{part}.weight"))?; // (E, D)
            for (row, values) in one.chunks_exact(size).enumerate() {
                all[row * width + head * size..][..size].copy_from_slice(values);
            }
        }
        Ok(all)
    }
}

/// The i-th random number of a stream, in [0, 1) with 24 bits (SplitMix64, Steele and others 2014): kiln's own batches.
fn fraction(i: usize, stream: usize) -> f32 {
    let mut z = (((stream as u64) << 40) + i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32
}

/// A program that can be timed.
pub trait Job {
    /// Whether a run can start before the one before it has ended.
    const IN_FLIGHT: bool;
    /// Puts a batch where runs read it, and waits until it is there.
    fn place(&mut self, batch: usize) -> Result;
    /// Starts a run.
    fn start(&mut self) -> Result;
    /// Waits for all runs.
    fn wait(&mut self) -> Result;
    /// Of the last step.
    fn loss(&mut self) -> Result<Option<f32>>;
}

/// What is known of a program beside its times.
pub struct About {
    pub program: &'static str,
    pub adapter: String,
    pub driver: String,
    pub peak_mib: Option<f64>,
    pub dispatches: Option<usize>,
    /// What is not as asked for.
    pub note: Option<&'static str>,
}

/// Seconds of a run.
fn waited_for(job: &mut impl Job, run: usize) -> Result<f64> {
    job.place(run % BATCHES)?;
    let begin = Instant::now();
    job.start()?;
    job.wait()?;
    Ok(begin.elapsed().as_secs_f64())
}

fn warm_up(job: &mut impl Job, least: usize) -> Result {
    let one = waited_for(job, 0)?;
    let together = (WARM_UP.as_secs_f64() / 4.0 / one).clamp(1.0, IN_FLIGHT) as usize;
    let (begin, mut run) = (Instant::now(), 1);
    while run < least || begin.elapsed() < WARM_UP {
        for _ in 0..together {
            job.start()?;
        }
        job.wait()?;
        run += together;
    }
    Ok(())
}

/// Makes a program, runs it and prints what its runs take.
pub fn measure<J: Job>(cell: &Cell, make: impl FnOnce() -> Result<J>, about: impl FnOnce(&mut J) -> About) -> Result {
    let begin = Instant::now();
    let mut job = make()?;
    job.place(0)?;
    job.start()?;
    job.wait()?;
    let first = begin.elapsed().as_secs_f64();
    let loss = job.loss()?;
    println!("{}", json!({"line": "first", "seconds": first}));
    warm_up(&mut job, cell.runs / 3)?;
    let mut times = Vec::with_capacity(cell.runs);
    for run in 0..cell.runs {
        times.push(waited_for(&mut job, run)? * 1e3);
    }
    let begin = Instant::now();
    for _ in 0..cell.runs {
        job.start()?;
    }
    job.wait()?;
    let in_flight = begin.elapsed().as_secs_f64() * 1e3 / cell.runs as f64;
    times.sort_by(f64::total_cmp);
    // the middle one or the mean of the middle two; the least that 95 % do not exceed
    let median = (times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2.0;
    let p95 = times[(times.len() * 95).div_ceil(100) - 1];
    let About { program, adapter, driver, peak_mib, dispatches, note } = about(&mut job);
    println!(
        "{}",
        json!({
            "line": "measured", "program": program, "adapter": adapter, "driver": driver, "runs": cell.runs,
            "ms": median, "p95_ms": p95, "min_ms": times[0], "in_flight_ms": J::IN_FLIGHT.then_some(in_flight),
            "first_run_s": first, "loss": loss, "peak_mib": peak_mib, "dispatches": dispatches, "note": note,
        })
    );
    Ok(())
}
