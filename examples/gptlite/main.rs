//! Continues a prompt with a trained GPTlite, one submit a character.
//!
//! Without arguments it uses the small character model in examples/data, which kiln trained on its own text. The config is JSON as
//! [`kiln::model::ModelConfig`] documents it.

mod generator;
mod sample;
#[path = "../progress/tuning.rs"]
mod tuning;

use clap::{Parser, ValueEnum};
use generator::{Generator, graph};
use kiln::gpu::{AdapterChoice, Profiling};
use kiln::measure::peak;
use kiln::model::{Checkpoint, GptliteFile, ModelConfig};
use kiln::session::{CompileOptions, Mode, Session, compile};
use kiln::trace::{Trace, stats};
use sample::Sampler;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Continues a prompt with a trained GPTlite")]
struct Args {
    /// Parameters as safetensors; the bundled checkpoint if not given.
    #[arg(long, requires = "config")]
    weights: Option<PathBuf>,
    /// Sizes and vocabulary as JSON.
    #[arg(long, requires = "weights")]
    config: Option<PathBuf>,
    /// Text to continue.
    #[arg(long, default_value = "pub fn ")]
    prompt: String,
    /// Characters to add.
    #[arg(long, default_value_t = 100)]
    tokens: usize,
    /// 0 takes the likeliest character each time.
    #[arg(long, default_value_t = 0.0, overrides_with = "temperature")]
    temperature: f64,
    /// Sample among this many likeliest characters; 0 is all.
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Seed of the sampler.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Part of the adapter's name.
    #[arg(long)]
    adapter: Option<String>,
    /// How the graph is run.
    #[arg(long, value_enum, default_value_t = ModeArg::Fused)]
    mode: ModeArg,
    /// Measures which configurations of kernels are the fastest on the device, and runs with those.
    #[arg(long)]
    tune: bool,
    /// Writes a trace of some steps, for kiln-viewer.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Writes the same for ui.perfetto.dev or chrome://tracing.
    #[arg(long)]
    chrome: Option<PathBuf>,
    /// Writes the same as a table.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Prints a table of the three modes after the text.
    #[arg(long, overrides_with = "compare")]
    compare: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArg {
    Eager,
    Recorded,
    Fused,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Mode {
        match mode {
            ModeArg::Eager => Mode::Eager,
            ModeArg::Recorded => Mode::Recorded,
            ModeArg::Fused => Mode::Fused,
        }
    }
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

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data");
    let config = args.config.clone().unwrap_or_else(|| data.join("gptlite_kiln.json"));
    let weights = args.weights.clone().unwrap_or_else(|| data.join("gptlite_kiln.weights.safetensors"));
    let ModelConfig::Gptlite(file) = ModelConfig::open(&config)? else {
        return Err(format!("{}: not a gptlite", config.display()).into());
    };
    let vocabulary =
        file.vocabulary.as_ref().ok_or_else(|| format!("{}: no \"vocab\", which text needs", config.display()))?;
    let mut tokens = vocabulary.encode(&args.prompt)?;
    if tokens.is_empty() {
        return Err("the prompt is empty: give at least one character with --prompt".into());
    }
    let mut sampler = Sampler::new(args.temperature, args.top_k, args.seed)?;
    let weights = Checkpoint::open(weights)?;
    let choice = args.adapter.clone().map_or(AdapterChoice::Best, AdapterChoice::Named);
    let session = Session::open_blocking(&choice)?;
    println!("adapter: {}", session.adapter());
    let generator = build(&session, &file, &weights, args.mode.into(), args.tune)?;

    print!("{}", args.prompt);
    std::io::stdout().flush()?;
    let begin = Instant::now();
    let mut submits = 0;
    for _ in 0..args.tokens {
        let run = generator.submit(&tokens)?;
        submits = run.submits();
        let outputs = run.wait()?;
        let next = sampler.pick(&outputs["logits"], &outputs["next"]);
        tokens.push(next);
        print!("{}", generator.vocabulary.decode(&[next])?);
        std::io::stdout().flush()?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("\n");
    println!("{} characters in {seconds:.2} s: {:.1} tokens/s", args.tokens, args.tokens as f64 / seconds);
    println!("mode {}, {submits} submits a step", generator.program.mode());
    let as_written = compile(&graph(&file.config)?, session.caps(), &CompileOptions::mode(Mode::Recorded))?;
    println!(
        "dispatches: {} as written, {} as run",
        as_written.recording.dispatches.len(),
        generator.program.dispatches()
    );
    println!("memory: {}", generator.program.plan());
    println!("as written: {}", as_written.plan);
    if args.trace.is_some() || args.chrome.is_some() || args.csv.is_some() {
        write_traces(args, &session, &generator, &tokens)?;
    }
    if args.compare {
        compare(&session, &file, &weights, &tokens)?;
    }
    Ok(())
}

/// Steps that a trace holds.
const TRACED: usize = 9;

fn write_traces(args: &Args, session: &Session, generator: &Generator, tokens: &[i32]) -> Result<(), Box<dyn Error>> {
    let (window, position) = generator.inputs(tokens);
    let mut trace = generator.program.describe();
    trace.title = format!("GPTlite, one step of S = {}", window.shape().dims()[1]);
    trace.device.peaks = Some(peak(session)?.into());
    for _ in 0..TRACED {
        trace.frames.push(generator.program.profile(&[("tokens", &window), ("position", &position)])?.1);
    }
    print!("{trace}");
    type Written = fn(&Trace) -> String;
    let files: [(&Option<PathBuf>, Written); 3] =
        [(&args.trace, Trace::to_json), (&args.chrome, Trace::to_chrome), (&args.csv, Trace::to_csv)];
    for (path, text) in files {
        if let Some(path) = path {
            std::fs::write(path, text(&trace)).map_err(|e| format!("{}: {e}", path.display()))?;
            println!("trace written to {}", path.display());
        }
    }
    Ok(())
}

fn build(
    session: &Session,
    file: &GptliteFile,
    weights: &Checkpoint,
    mode: Mode,
    tune: bool,
) -> Result<Generator, Box<dyn Error>> {
    let loaded = weights.load(&graph(&file.config)?.layout)?;
    if !loaded.unused.is_empty() {
        eprintln!("warning: parameters that the model does not have: {}", loaded.unused.join(", "));
    }
    let vocabulary = file.vocabulary.as_ref().ok_or("the config has no \"vocab\", which text needs")?;
    // a trace of a model this small is for looking at each kernel
    let mut options = CompileOptions { profiling: Profiling::Exact, ..CompileOptions::mode(mode) };
    if tune {
        let compiled = compile(&graph(&file.config)?, session.caps(), &options)?;
        options = tuning::tuned(session, &compiled, options, None)?.0;
    }
    Generator::new(session, &file.config, vocabulary, &loaded, &options)
}

/// Steps of each mode, taken in turn so that a machine whose speed drifts treats them alike.
const ROUNDS: usize = 9;

fn compare(session: &Session, file: &GptliteFile, weights: &Checkpoint, tokens: &[i32]) -> Result<(), Box<dyn Error>> {
    let modes = [Mode::Eager, Mode::Recorded, Mode::Fused];
    let mut generators = Vec::new();
    for mode in modes {
        generators.push((build(session, file, weights, mode, false)?, Vec::new(), Vec::new(), 0));
    }
    for round in 0..=ROUNDS {
        for (generator, walls, hosts, submits) in &mut generators {
            let begin = Instant::now();
            let run = generator.submit(tokens)?;
            let host = run.host_ns();
            *submits = run.submits();
            run.wait()?;
            // the first round warms up
            if round > 0 {
                walls.push(begin.elapsed().as_nanos() as u64);
                hosts.push(host);
            }
        }
    }
    println!("\none step of S = {} (median of {ROUNDS})", file.config.block_size);
    println!(
        "{:<9} {:>9} {:>9} {:>8} {:>10} {:>13} {:>12}",
        "mode", "ms", "speed-up", "submits", "dispatches", "host µs", "planned MiB"
    );
    let mut eager = None;
    for (generator, walls, hosts, submits) in generators {
        let ms = median(walls) / 1e6;
        let base = *eager.get_or_insert(ms);
        let mib = generator.program.plan().total() as f64 / f64::from(1 << 20);
        let (mode, dispatches) = (generator.program.mode().to_string(), generator.program.dispatches());
        println!(
            "{mode:<9} {ms:>9.3} {:>8.2}x {submits:>8} {dispatches:>10} {:>13.1} {mib:>12.2}",
            base / ms,
            median(hosts) / 1e3
        );
    }
    Ok(())
}

fn median(values: Vec<u64>) -> f64 {
    stats(values).map_or(f64::NAN, |s| s.median)
}
