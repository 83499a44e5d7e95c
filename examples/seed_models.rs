//! Runs the seed's three models at full size: GPTlite Small (12 layers of 768, S = 2048, batch 1), deep (2048 layers of
//! 256, batch 2048) and wide (3 layers of 8192, batch 2048). Prints times of the modes; `--verify` compares the whole
//! output with the f64 reference on the CPU.

use clap::{Parser, ValueEnum};
use kiln::gpu::AdapterChoice;
use kiln::graph::{Builder, Graph};
use kiln::measure::peak;
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig, Init, init};
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Mode, Program, Session};
use kiln::tensor::Tensor;
use serde::Serialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Times and verifies the seed's models at full size")]
struct Args {
    /// Which models.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Model::Gptlite, Model::Deep, Model::Wide])]
    model: Vec<Model>,
    /// Which modes.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ModeArg::Eager, ModeArg::Recorded, ModeArg::Fused])]
    mode: Vec<ModeArg>,
    /// How parameters are drawn.
    #[arg(long, value_enum, default_value_t = InitArg::He)]
    init: InitArg,
    /// Timed runs, after a third as many that warm up; with 0 only the first run is timed.
    #[arg(long, default_value_t = 30)]
    runs: usize,
    /// Compares outputs with the f64 reference.
    #[arg(long)]
    verify: bool,
    /// Prints the time of each kernel.
    #[arg(long)]
    kernels: bool,
    /// Writes the rows as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Part of the adapter's name.
    #[arg(long)]
    adapter: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Model {
    Gptlite,
    Deep,
    Wide,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArg {
    Eager,
    Recorded,
    Fused,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum InitArg {
    Default,
    He,
}

/// One line of the table.
#[derive(Serialize)]
struct Row {
    model: String,
    mode: String,
    init: String,
    adapter: String,
    driver: String,
    /// Median of submit to done, milliseconds.
    wall_ms: f64,
    /// Per run of several in flight, milliseconds.
    pipelined_ms: f64,
    /// First kernel's begin to last kernel's end of one run, milliseconds.
    gpu_ms: Option<f64>,
    submits: u64,
    dispatches: usize,
    encode_us: f64,
    planned_mib: f64,
    naive_mib: f64,
    tflops: f64,
    share_of_measured_peak: f64,
    first_run_s: f64,
    relative_error: Option<f64>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Largest relative error that `--verify` accepts. f32 rounding grows with the square root of the depth: 2048 layers
/// give about 2e-5.
const TOLERANCE: f64 = 5e-5;

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let choice = args.adapter.clone().map_or(AdapterChoice::Best, AdapterChoice::Named);
    let session = Session::open_blocking(&choice)?;
    println!("adapter: {}", session.adapter());
    let peak = peak(&session)?;
    println!("measured peak: f32 {:.2} TFLOP/s, copy {:.0} GB/s", peak.flops / 1e12, peak.bytes / 1e9);
    println!(
        "{:<8} {:<9} {:>9} {:>9} {:>9} {:>7} {:>6} {:>9} {:>8} {:>9} {:>7} {:>6} {:>8} {:>9}",
        "model",
        "mode",
        "wall ms",
        "piped ms",
        "GPU ms",
        "submits",
        "disp.",
        "encode µs",
        "MiB",
        "naive MiB",
        "TFLOP/s",
        "peak",
        "first s",
        "error"
    );
    let mut rows = Vec::new();
    let mut wrong = false;
    for model in &args.model {
        let (graph, name, input) = build(*model)?;
        // tokens come with each run; a DNN's samples stay on the device, as PyTorch's do
        let resident = graph.inputs().next().is_none();
        let kind = match args.init {
            InitArg::Default => Init::Default,
            InitArg::He => Init::He,
        };
        let params = init(&graph.layout, kind, 0)?;
        let inputs = BTreeMap::from([(name.to_owned(), input)]);
        let reference = if args.verify { Some(evaluate(&graph, &params, &inputs)?) } else { None };
        for mode in &args.mode {
            let mode = match mode {
                ModeArg::Eager => Mode::Eager,
                ModeArg::Recorded => Mode::Recorded,
                ModeArg::Fused => Mode::Fused,
            };
            let begin = Instant::now();
            let program = session.compile(&graph, &params, &CompileOptions::mode(mode))?;
            if resident {
                program.write_state(name, &inputs[name])?;
            }
            let given: Vec<(&str, &Tensor)> = if resident { vec![] } else { vec![(name, &inputs[name])] };
            let run_begin = Instant::now();
            let run = program.submit(&given)?;
            let submits = run.submits();
            let encode_us = run.encode_ns() as f64 / 1e3;
            let outputs = run.wait()?;
            let first_ms = run_begin.elapsed().as_secs_f64() * 1e3;
            let first_run_s = begin.elapsed().as_secs_f64();
            let relative_error = reference.as_ref().map(|r| {
                let (port, out) = outputs.iter().next().expect("the models have an output");
                error(&out.to_f64(), &r[port].data)
            });
            wrong |= relative_error.is_some_and(|e| e.is_nan() || e > TOLERANCE);
            let row = measure(&program, &given, args.runs, args.kernels, (first_ms, submits, encode_us))?;
            let row = Row {
                model: format!("{model:?}").to_lowercase(),
                mode: mode.to_string(),
                init: format!("{:?}", args.init).to_lowercase(),
                adapter: session.adapter().name.clone(),
                driver: session.adapter().driver.clone(),
                share_of_measured_peak: row.tflops * 1e12 / peak.flops,
                first_run_s,
                relative_error,
                ..row
            };
            print(&row);
            rows.push(row);
        }
    }
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&rows)?).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    if wrong { Err(format!("an output differs from the reference by more than {TOLERANCE:e}").into()) } else { Ok(()) }
}

/// The model's graph, its input's name and one input.
fn build(model: Model) -> Result<(Graph, &'static str, Tensor), Box<dyn Error>> {
    const BATCH: usize = 2048;
    Ok(match model {
        Model::Gptlite => {
            let config = GptliteConfig::small();
            let (seq, vocab) = (config.block_size, config.vocab_size);
            let tokens: Vec<i32> = (0..seq).map(|i| (i * i * 31 + i * 17) as i32 % vocab as i32).collect();
            (Gptlite::new(config).build(1, seq)?, "tokens", Tensor::i32([1, seq], &tokens))
        }
        Model::Deep | Model::Wide => {
            let config = if matches!(model, Model::Deep) { DnnConfig::deep() } else { DnnConfig::wide() };
            // a fixed sequence with unit variance and no period
            let noise = |i: usize| {
                (((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0) * 1.732
            };
            let values: Vec<f32> = (0..BATCH * config.in_size).map(noise).collect();
            let x = Tensor::f32([BATCH, config.in_size], &values);
            let mut b = Builder::new();
            let input = b.state("input", x.ty().clone())?;
            let output = Dnn::new(config).forward(&mut b, input)?;
            b.output("output", output)?;
            b.update(input, input)?;
            (b.finish()?, "input", x)
        }
    })
}

/// `‖out − ref‖ / ‖ref‖`.
fn error(out: &[f64], reference: &[f64]) -> f64 {
    let difference: f64 = out.iter().zip(reference).map(|(a, b)| (a - b) * (a - b)).sum();
    let norm: f64 = reference.iter().map(|b| b * b).sum();
    (difference / norm).sqrt()
}

/// Without timed runs the first one is all there is.
fn measure(
    program: &Program,
    given: &[(&str, &Tensor)],
    runs: usize,
    kernels: bool,
    (first_ms, submits, encode_us): (f64, u64, f64),
) -> Result<Row, Box<dyn Error>> {
    if runs == 0 {
        return Ok(row(program, (first_ms, first_ms, None), submits, encode_us));
    }
    let (mut walls, mut encodes, mut submits) = (Vec::new(), Vec::new(), 0);
    for i in 0..runs + runs / 3 {
        let begin = Instant::now();
        let run = program.submit_unread(given)?;
        let encode = run.encode_ns() as f64 / 1e3;
        submits = run.submits();
        run.wait()?;
        if i >= runs / 3 {
            walls.push(begin.elapsed().as_secs_f64() * 1e3);
            encodes.push(encode);
        }
    }
    let begin = Instant::now();
    let mut last = None;
    for _ in 0..runs {
        last = Some(program.submit_unread(given)?);
    }
    if let Some(run) = last {
        run.wait()?;
    }
    let pipelined_ms = begin.elapsed().as_secs_f64() * 1e3 / runs as f64;
    let (_, trace) = program.trace(given)?;
    if kernels {
        print!("{trace}");
    }
    let gpu_ms = trace.gpu_stats().map(|s| s.median / 1e6);
    Ok(row(program, (median(&mut walls), pipelined_ms, gpu_ms), submits, median(&mut encodes)))
}

/// Times in milliseconds: of one run, per run of several in flight, on the device.
fn row(
    program: &Program,
    (wall_ms, pipelined_ms, gpu_ms): (f64, f64, Option<f64>),
    submits: u64,
    encode_us: f64,
) -> Row {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    Row {
        model: String::new(),
        mode: String::new(),
        init: String::new(),
        adapter: String::new(),
        driver: String::new(),
        wall_ms,
        pipelined_ms,
        gpu_ms,
        submits,
        dispatches: program.dispatches(),
        encode_us,
        planned_mib: mib(program.plan().total()),
        naive_mib: mib(program.plan().naive),
        tflops: program.compiled().recording.estimate().flops / gpu_ms.unwrap_or(pipelined_ms) / 1e9,
        share_of_measured_peak: 0.0,
        first_run_s: 0.0,
        relative_error: None,
    }
}

fn print(r: &Row) {
    let gpu = r.gpu_ms.map_or("-".into(), |ms| format!("{ms:.3}"));
    let error = r.relative_error.map_or("-".into(), |e| format!("{e:.2e}"));
    println!(
        "{:<8} {:<9} {:>9.3} {:>9.3} {gpu:>9} {:>7} {:>6} {:>9.0} {:>8.1} {:>9.1} {:>7.2} {:>5.1}% {:>8.2} {error:>9}",
        r.model,
        r.mode,
        r.wall_ms,
        r.pipelined_ms,
        r.submits,
        r.dispatches,
        r.encode_us,
        r.planned_mib,
        r.naive_mib,
        r.tflops,
        100.0 * r.share_of_measured_peak,
        r.first_run_s
    );
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
