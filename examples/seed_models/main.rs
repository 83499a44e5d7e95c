//! Runs the seed's three models at full size: GPTlite Small (12 layers of 768, S = 2048, batch 1), deep (2048 layers of
//! 256, batch 2048) and wide (3 layers of 8192, batch 2048), forward passes or whole training steps: dropout 0.1 in
//! GPTlite, softmax and then cross entropy of that, Adam at 2e-4 with betas 0.5 and 0.5. Prints times of the modes, for
//! `cargo xtask bench` as lines of JSON; `--verify` compares outputs or gradients with the f64 reference on the CPU.

mod line;
mod measure;
mod models;
mod sizes;
#[path = "../progress/tuning.rs"]
mod tuning;
mod verify;

use clap::{Parser, ValueEnum};
use kiln::MatmulPrecision;
use kiln::gpu::AdapterChoice;
use kiln::grad::Checkpoint;
use kiln::graph::DType;
use kiln::measure::{Peak, peak};
use kiln::model::{Init, init, save};
use kiln::reference::{Value, evaluate};
use kiln::select::Overlap;
use kiln::session::{CompileOptions, Mode, Session, compile};
use kiln::tensor::Tensor;
use kiln::train::{LossScaling, Optimiser, Precision, Schedule, TrainOptions};
use kiln::trainer::compile_training;
use line::{Line, Measured};
use measure::{Job, TIMED, quantile};
use models::Work;
use serde::Serialize;
use sizes::{Model, Phase, Scale, Sizes};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use verify::{Comparison, Gradients};

#[derive(Parser)]
#[command(about = "Times and verifies the seed's models at full size")]
struct Args {
    /// Forward passes or training steps.
    #[arg(long, value_enum, default_value_t = Phase::Infer)]
    phase: Phase,
    /// Which models.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Model::Gptlite, Model::Deep, Model::Wide])]
    model: Vec<Model>,
    /// Which modes.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ModeArg::Eager, ModeArg::Recorded, ModeArg::Fused])]
    mode: Vec<ModeArg>,
    /// How parameters are drawn.
    #[arg(long, value_enum, default_value_t = InitArg::He)]
    init: InitArg,
    /// In what is computed: all in f32, or with weights and activations in f16 (in training: activations).
    #[arg(long, value_enum, default_value_t = PrecisionArg::Highest)]
    precision: PrecisionArg,
    /// Timed runs, after a third as many in flight that warm up, at least 1 s of them; with 0 only the first run is timed.
    #[arg(long, default_value_t = 30)]
    runs: usize,
    /// The seed's sizes, or a fraction of them for a CPU.
    #[arg(long, value_enum, default_value_t = Scale::Full)]
    scale: Scale,
    /// Positions of GPTlite's sequence, or samples of a DNN, in place of the scale's.
    #[arg(long)]
    rows: Option<usize>,
    /// Compares with the f64 reference: the whole output; or in training, and then nothing is timed, the gradients of the
    /// first, middle and last layers at full depth for 64 positions, 8 or 4 samples, under both initialisations.
    #[arg(long)]
    verify: bool,
    /// In training: keep activations at every so many layers of the deep model only, and compute the others anew.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint: Option<u64>,
    /// Lets no launches run side by side.
    #[arg(long)]
    one_by_one: bool,
    /// Also runs the mode "tuned".
    #[arg(long)]
    tune: bool,
    /// Writes the time of each candidate of a tuning; with several models, of the last.
    #[arg(long)]
    tune_log: Option<PathBuf>,
    /// Prints the time of each kernel.
    #[arg(long)]
    kernels: bool,
    /// Prints what timestamps cost instead: runs without them, with few and with all by turns, `--runs` rounds.
    #[arg(long, conflicts_with_all = ["verify", "kernels", "json"])]
    profile_cost: bool,
    /// Writes the rows as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Prints lines of JSON in place of the table.
    #[arg(long)]
    lines: bool,
    /// Runs nothing: prints the adapter's measured peaks.
    #[arg(long)]
    peak: bool,
    /// Runs nothing: writes each model's parameters to this folder, as MODEL-INIT.safetensors.
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Part of the adapter's name, or its PCI address.
    #[arg(long)]
    adapter: Option<String>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ModeArg {
    Eager,
    Recorded,
    Fused,
    /// Fused, with the configurations of kernels that are the fastest on the device.
    Tuned,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Mode {
        match mode {
            ModeArg::Eager => Mode::Eager,
            ModeArg::Recorded => Mode::Recorded,
            ModeArg::Fused | ModeArg::Tuned => Mode::Fused,
        }
    }
}

/// What a mode is called in tables.
fn words(mode: ModeArg) -> String {
    if mode == ModeArg::Tuned { "tuned".into() } else { Mode::from(mode).to_string() }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum InitArg {
    Default,
    He,
}

impl From<InitArg> for Init {
    fn from(kind: InitArg) -> Init {
        match kind {
            InitArg::Default => Init::Default,
            InitArg::He => Init::He,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum PrecisionArg {
    Highest,
    /// Products of split operands on matrix units.
    High,
    /// Products of rounded operands on matrix units.
    Medium,
    F16,
}

impl From<PrecisionArg> for MatmulPrecision {
    fn from(precision: PrecisionArg) -> Self {
        match precision {
            PrecisionArg::Highest | PrecisionArg::F16 => MatmulPrecision::Highest,
            PrecisionArg::High => MatmulPrecision::High,
            PrecisionArg::Medium => MatmulPrecision::Medium,
        }
    }
}

/// One line of the table.
#[derive(Serialize)]
struct Row {
    phase: String,
    rows: usize,
    model: String,
    mode: String,
    precision: String,
    init: String,
    adapter: String,
    driver: String,
    pci: Option<String>,
    runs: usize,
    /// Median of submit to done, milliseconds; then the time that 95 % of runs keep, and the least.
    wall_ms: f64,
    p95_ms: f64,
    min_ms: f64,
    /// Per run of several in flight, milliseconds.
    pipelined_ms: f64,
    /// First kernel's begin to last kernel's end of one run, milliseconds.
    gpu_ms: Option<f64>,
    submits: u64,
    dispatches: usize,
    host_us: f64,
    planned_mib: f64,
    naive_mib: f64,
    tflops: f64,
    share_of_measured_peak: Option<f64>,
    first_run_s: f64,
    /// What it took to tune, ahead of the first run.
    tuning_s: Option<f64>,
    /// How many times as long as the fastest ones the launches take that kernels' models choose, where both were timed.
    tuning_ratio: Option<f64>,
    /// Of the output.
    relative_error: Option<f64>,
    /// Of the first training step.
    loss: Option<f32>,
    /// Layers from one kept activation to the next.
    checkpoint: Option<u64>,
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

/// The largest errors that `--verify` accepts.
struct Tolerances {
    /// Of an output. Rounding grows with the square root of the depth: 2048 layers give about 2e-5 in f32. What matrix
    /// units cut off grows with the depth itself, 2e-7 a layer at high.
    output: f64,
    /// Of a gradient.
    gradient: f64,
    /// Largest value of a ReLU on the other side of 0 than in f64, in terms of the largest of its layer.
    side: f64,
}

fn tolerances(precision: PrecisionArg) -> Tolerances {
    match precision {
        PrecisionArg::Highest => Tolerances { output: 5e-5, gradient: 1e-4, side: 1e-4 },
        PrecisionArg::High => Tolerances { output: 1e-3, gradient: 2e-3, side: 2e-4 },
        PrecisionArg::Medium => Tolerances { output: 2e-2, gradient: 5e-2, side: 5e-2 },
        PrecisionArg::F16 => Tolerances { output: 1.5e-1, gradient: 3e-1, side: 1.5e-1 },
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    if let Some(folder) = &args.save {
        return save_parameters(args, folder);
    }
    let choice = args.adapter.clone().map_or(AdapterChoice::Best, AdapterChoice::Named);
    let session = Session::open_blocking(&choice)?;
    if !args.lines {
        println!("adapter: {}", session.adapter());
    }
    if args.phase == Phase::Train && args.verify {
        return verify_gradients(args, &session);
    }
    if args.profile_cost {
        return profile_cost(args, &session);
    }
    // the runner of lines measures it once
    let peak = if args.peak || !args.lines { Some(peak(&session)?) } else { None };
    if let Some(Peak { flops, bytes }) = peak {
        match args.lines {
            true => {
                let (adapter, driver) = (session.adapter().name.clone(), session.adapter().driver.clone());
                say(&Line::Peak { adapter, driver, flops, bytes })?;
            }
            false => println!("measured peak: f32 {:.2} TFLOP/s, copy {:.0} GB/s", flops / 1e12, bytes / 1e9),
        }
    }
    if args.peak {
        return Ok(());
    }
    if !args.lines {
        print_head(args.phase);
    }
    let mut rows = Vec::new();
    for model in &args.model {
        let whole = work(args, *model)?;
        let params = init(&whole.graph.layout, args.init.into(), 0)?;
        let reference = match args.phase == Phase::Infer && args.verify {
            true => Some(evaluate(&whole.graph, &params, &verify::inputs(&whole))?),
            false => None,
        };
        let also = args.tune && !args.mode.contains(&ModeArg::Tuned);
        for mode in args.mode.iter().chain(also.then_some(&ModeArg::Tuned)) {
            let subject = Subject { sizes: sizes(args, *model), params: &params, reference: reference.as_ref() };
            let row = row(args, &session, &subject, *mode, peak)?;
            match args.lines {
                true => say(&Line::Measured(measured(&row)))?,
                false => print(&row),
            }
            rows.push(row);
        }
    }
    write_json(args, &rows)?;
    let most = tolerances(args.precision).output;
    match rows.iter().filter_map(|row| row.relative_error).any(|e| e.is_nan() || e > most) {
        true => Err(format!("an output differs from the reference by more than {most:e}").into()),
        false => Ok(()),
    }
}

fn sizes(args: &Args, model: Model) -> Sizes {
    let sizes = Sizes::of(model, args.scale);
    args.rows.map_or(sizes, |rows| sizes.with_rows(rows))
}

/// Prints a line of JSON at once.
fn say(line: &Line) -> Result<(), Box<dyn Error>> {
    println!("{}", serde_json::to_string(line)?);
    Ok(std::io::stdout().flush()?)
}

/// Writes what [`init`] draws for each model, so that other programs start from the same weights.
fn save_parameters(args: &Args, folder: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let kind = format!("{:?}", args.init).to_lowercase();
    for model in &args.model {
        let work = sizes(args, *model).infer(DType::F32)?;
        let path = folder.join(format!("{model}-{kind}.safetensors"));
        save(&path, &init(&work.graph.layout, args.init.into(), 0)?)?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Prints what timestamps cost.
fn profile_cost(args: &Args, session: &Session) -> Result<(), Box<dyn Error>> {
    println!("milliseconds a run, timed in each way by turns, medians of {} rounds", args.runs.max(1));
    println!(
        "{:<8} {:<9} {:<6} {:>6} {:>6} {:>7} {:>10} {:>7} {:>10} {:>8} {:>10}",
        "model", "mode", "times", "disp.", "timed", "passes", "in flight", "cost", "alone", "host", "by stamps"
    );
    for model in &args.model {
        let work = work(args, *model)?;
        let params = init(&work.graph.layout, args.init.into(), 0)?;
        for mode in &args.mode {
            let job =
                plan(args, session, *model, &work, *mode)?.job(args, session, self::work(args, *model)?, &params)?;
            let costs = job.profile_cost(args.runs.max(1))?;
            for (how, cost) in TIMED.iter().zip(&costs) {
                println!(
                    "{:<8} {:<9} {:<6} {:>6} {:>6} {:>7} {:>10.3} {:>+6.2}% {:>10.3} {:>8.3} {:>10}",
                    model.to_string(),
                    words(*mode),
                    how.map_or("none".into(), |how| format!("{how:?}").to_lowercase()),
                    job.program().dispatches(),
                    cost.timed,
                    cost.passes,
                    cost.in_flight,
                    100.0 * (cost.in_flight / costs[0].in_flight - 1.0),
                    cost.alone,
                    cost.host,
                    cost.stamped.map_or("-".into(), |ms| format!("{ms:.3}"))
                );
            }
        }
    }
    Ok(())
}

fn work(args: &Args, model: Model) -> Result<Work, Box<dyn Error>> {
    let dtype = if args.precision == PrecisionArg::F16 { DType::F16 } else { DType::F32 };
    match args.phase {
        Phase::Infer => sizes(args, model).infer(dtype),
        Phase::Train => sizes(args, model).train(),
    }
}

/// How a model is compiled in a mode.
struct Plan {
    options: CompileOptions,
    train: TrainOptions,
    tuning: Option<Tuned>,
}

/// What tuning took and found.
struct Tuned {
    seconds: f64,
    /// Of the launches that kernels' models choose, to the fastest; `None` if nothing was timed.
    ratio: Option<f64>,
}

/// Tunes it first, if the mode says so.
fn plan(args: &Args, session: &Session, model: Model, work: &Work, mode: ModeArg) -> Result<Plan, Box<dyn Error>> {
    let overlap = if args.one_by_one { Overlap::Never } else { Overlap::default() };
    let options = CompileOptions { precision: args.precision.into(), overlap, ..CompileOptions::mode(mode.into()) };
    let train = TrainOptions {
        optimiser: Optimiser::Adam { beta1: 0.5, beta2: 0.5, eps: 1e-8, weight_decay: 0.0 },
        learning_rate: Schedule::constant(2e-4),
        checkpoint: checkpoint(args, model),
        precision: match args.precision {
            PrecisionArg::Highest | PrecisionArg::High | PrecisionArg::Medium => Precision::F32,
            PrecisionArg::F16 => Precision::F16(LossScaling::default()),
        },
        // the deep model's activations outgrow f16 within a few steps
        skip_non_finite: args.precision == PrecisionArg::F16,
        ..TrainOptions::default()
    };
    if mode != ModeArg::Tuned {
        return Ok(Plan { options, train, tuning: None });
    }
    let (caps, begin) = (session.caps(), Instant::now());
    let compiled = match args.phase {
        Phase::Infer => compile(&work.graph, caps, &options)?,
        Phase::Train => compile_training(&work.graph, &train, caps, &options)?,
    };
    let (options, report) = tuning::tuned(session, &compiled, options, args.tune_log.as_deref())?;
    let (default, best) = report.totals();
    let ratio = (!best.is_zero()).then(|| default.as_secs_f64() / best.as_secs_f64());
    Ok(Plan { options, train, tuning: Some(Tuned { seconds: begin.elapsed().as_secs_f64(), ratio }) })
}

impl Plan {
    fn job(
        &self,
        args: &Args,
        session: &Session,
        work: Work,
        params: &BTreeMap<String, Tensor>,
    ) -> Result<Job, Box<dyn Error>> {
        match args.phase {
            Phase::Infer => Job::infer(session, work, params, &self.options),
            Phase::Train => Job::train(session, work, params, &self.train, &self.options),
        }
    }
}

/// How far a number or tensor is from the reference's.
#[derive(Serialize)]
struct Gradient {
    model: String,
    mode: String,
    precision: String,
    init: String,
    adapter: String,
    /// The parameter whose gradient it is, the loss, or the ReLUs.
    what: String,
    error: f64,
    passes: bool,
}

/// Prints how far each gradient is.
fn verify_gradients(args: &Args, session: &Session) -> Result<(), Box<dyn Error>> {
    println!("{:<8} {:<8} {:<9} {:<54} error", "model", "init", "mode", "gradient of");
    let most = tolerances(args.precision);
    let mut rows = Vec::new();
    for model in &args.model {
        for (name, kind) in [("default", Init::Default), ("he", Init::He)] {
            let gradients = Gradients::new(*model, kind, checkpoint(args, *model))?;
            for mode in &args.mode {
                let mode = (*mode).into();
                let Comparison { relus, flipped, furthest, errors } =
                    gradients.compare(session, mode, args.precision.into())?;
                let (model, mode, init) = (model.to_string(), mode.to_string(), name.to_owned());
                let adapter = session.adapter().name.clone();
                let sides = format!("{flipped} of {relus} ReLUs on the other side of 0, by");
                let errors = errors.into_iter().map(|(name, e)| (name, e, most.gradient));
                for (what, error, most) in [(sides, furthest, most.side)].into_iter().chain(errors) {
                    let row = Gradient {
                        model: model.clone(),
                        mode: mode.clone(),
                        precision: format!("{:?}", args.precision).to_lowercase(),
                        init: init.clone(),
                        adapter: adapter.clone(),
                        what,
                        error,
                        passes: error <= most,
                    };
                    let mark = if row.passes { "" } else { "  FAILED" };
                    println!("{model:<8} {init:<8} {mode:<9} {:<54} {error:.2e}{mark}", row.what);
                    rows.push(row);
                }
            }
        }
    }
    write_json(args, &rows)?;
    match rows.iter().filter(|r| !r.passes).count() {
        0 => Ok(()),
        n => Err(format!("{n} numbers differ from the reference by more than {:e}", most.gradient).into()),
    }
}

fn write_json(args: &Args, rows: &impl Serialize) -> Result<(), Box<dyn Error>> {
    let Some(path) = &args.json else { return Ok(()) };
    std::fs::write(path, serde_json::to_string_pretty(rows)?).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(())
}

fn checkpoint(args: &Args, model: Model) -> Checkpoint {
    match args.checkpoint {
        Some(every) if model == Model::Deep => Checkpoint::Every(every as usize),
        _ => TrainOptions::default().checkpoint,
    }
}

/// A model with all that is the same in every mode.
struct Subject<'a> {
    sizes: Sizes,
    params: &'a BTreeMap<String, Tensor>,
    /// What the forward pass must give, if it is verified.
    reference: Option<&'a BTreeMap<String, Value>>,
}

/// Compiles, runs and times one model in one mode.
fn row(
    args: &Args,
    session: &Session,
    subject: &Subject,
    mode: ModeArg,
    peak: Option<Peak>,
) -> Result<Row, Box<dyn Error>> {
    let Subject { sizes, params, reference } = *subject;
    let model = sizes.model;
    let work = work(args, model)?;
    let plan = plan(args, session, model, &work, mode)?;
    let begin = Instant::now();
    let job = plan.job(args, session, work, params)?;
    let (outputs, first) = job.first()?;
    let first_run_s = begin.elapsed().as_secs_f64();
    if args.lines {
        say(&Line::First { seconds: first_run_s })?;
    }
    let loss = outputs.get("loss").map(|loss| loss.to_f32()[0]);
    let relative_error = match (reference, outputs.iter().next()) {
        (Some(reference), Some((name, out))) => Some(verify::error(&out.to_f64(), &reference[name].data)),
        _ => None,
    };
    // without timed runs the first one is all there is
    let times = if args.runs == 0 { first } else { job.measure(args.runs, args.kernels)? };
    let program = job.program();
    for finding in program.report().findings.iter().filter(|f| f.pass == "select") {
        println!("{finding}");
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let tflops = program.compiled().recording.estimate().flops / times.gpu_ms.unwrap_or(times.pipelined_ms) / 1e9;
    Ok(Row {
        phase: format!("{:?}", args.phase).to_lowercase(),
        rows: sizes.rows,
        model: model.to_string(),
        mode: words(mode),
        precision: format!("{:?}", args.precision).to_lowercase(),
        init: format!("{:?}", args.init).to_lowercase(),
        adapter: session.adapter().name.clone(),
        driver: session.adapter().driver.clone(),
        pci: session.adapter().pci.clone(),
        runs: times.walls_ms.len(),
        wall_ms: quantile(&times.walls_ms, 0.5),
        p95_ms: quantile(&times.walls_ms, 0.95),
        min_ms: quantile(&times.walls_ms, 0.0),
        pipelined_ms: times.pipelined_ms,
        gpu_ms: times.gpu_ms,
        submits: times.submits,
        dispatches: program.dispatches(),
        host_us: times.host_us,
        planned_mib: mib(program.plan().total()),
        naive_mib: mib(program.plan().naive),
        tflops,
        share_of_measured_peak: peak.map(|p| tflops * 1e12 / p.flops),
        first_run_s,
        tuning_s: plan.tuning.as_ref().map(|t| t.seconds),
        tuning_ratio: plan.tuning.and_then(|t| t.ratio),
        relative_error,
        loss,
        checkpoint: args.checkpoint.filter(|_| args.phase == Phase::Train && model == Model::Deep),
    })
}

/// A row for the runner.
fn measured(r: &Row) -> Measured {
    Measured {
        adapter: r.adapter.clone(),
        driver: r.driver.clone(),
        pci: r.pci.clone(),
        program: format!("kiln {}", env!("CARGO_PKG_VERSION")),
        runs: r.runs,
        ms: r.wall_ms,
        p95_ms: r.p95_ms,
        min_ms: r.min_ms,
        in_flight_ms: Some(r.pipelined_ms),
        device_ms: r.gpu_ms,
        first_run_s: r.first_run_s,
        second_start_s: None,
        peak_mib: Some(r.planned_mib),
        submits: Some(r.submits),
        dispatches: Some(r.dispatches as u64),
        loss: r.loss.map(f64::from),
        note: r.tuning_s.map(|seconds| {
            let ratio = r.tuning_ratio.map_or(String::new(), |ratio| {
                format!("; one by one the default's launches take {ratio:.2} times as long as these")
            });
            format!("tuned in {seconds:.1} s ahead of the first run{ratio}")
        }),
    }
}

fn print_head(phase: Phase) {
    println!(
        "{:<8} {:<9} {:>9} {:>9} {:>9} {:>7} {:>6} {:>9} {:>8} {:>9} {:>7} {:>6} {:>8} {:>9}",
        "model",
        "mode",
        "wall ms",
        "piped ms",
        "GPU ms",
        "submits",
        "disp.",
        "host µs",
        "MiB",
        "naive MiB",
        "TFLOP/s",
        "peak",
        "first s",
        if phase == Phase::Infer { "error" } else { "loss" }
    );
}

fn print(r: &Row) {
    let gpu = r.gpu_ms.map_or("-".into(), |ms| format!("{ms:.3}"));
    let last = match (r.relative_error, r.loss) {
        (Some(error), _) => format!("{error:.2e}"),
        (None, Some(loss)) => format!("{loss:.5}"),
        (None, None) => "-".into(),
    };
    println!(
        "{:<8} {:<9} {:>9.3} {:>9.3} {gpu:>9} {:>7} {:>6} {:>9.0} {:>8.1} {:>9.1} {:>7.2} {:>5.1}% {:>8.2} {last:>9}",
        r.model,
        r.mode,
        r.wall_ms,
        r.pipelined_ms,
        r.submits,
        r.dispatches,
        r.host_us,
        r.planned_mib,
        r.naive_mib,
        r.tflops,
        100.0 * r.share_of_measured_peak.unwrap_or(f64::NAN),
        r.first_run_s
    );
}
