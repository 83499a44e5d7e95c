//! Runs the seed's two DNNs, deep (2048 layers of 256) and wide (3 layers of 8192), batch 2048, in the three modes,
//! and prints what each costs. On a CPU that acts as a GPU both are scaled down unless sizes are given.

use clap::{Parser, ValueEnum};
use kiln::gpu::AdapterChoice;
use kiln::measure::{Peak, peak, theoretical_flops};
use kiln::model::{Dnn, DnnConfig, Init, init};
use kiln::session::{CompileOptions, Mode, Session};
use kiln::tensor::Tensor;
use kiln::trace::stats;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Times a DNN of any width and depth in the three modes")]
struct Args {
    /// Activations of a layer.
    #[arg(long)]
    width: Option<usize>,
    /// Layers.
    #[arg(long)]
    depth: Option<usize>,
    /// Samples.
    #[arg(long)]
    batch: Option<usize>,
    /// How parameters are drawn.
    #[arg(long, value_enum, default_value_t = InitArg::Default)]
    init: InitArg,
    /// Only these modes.
    #[arg(long, value_enum, value_delimiter = ',')]
    mode: Vec<ModeArg>,
    /// Timed runs of each mode, after one that warms up.
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Part of the adapter's name.
    #[arg(long)]
    adapter: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum InitArg {
    Default,
    He,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ModeArg {
    Eager,
    Recorded,
    Fused,
}

/// A model to run and how it relates to the seed's.
struct Job {
    title: String,
    config: DnnConfig,
    batch: usize,
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

fn jobs(args: &Args, cpu: bool) -> Vec<Job> {
    const BATCH: usize = 2048;
    let batch = |scaled: usize| args.batch.unwrap_or(if cpu { scaled } else { BATCH });
    if args.width.is_some() || args.depth.is_some() {
        let config = DnnConfig::square(args.width.unwrap_or(256), args.depth.unwrap_or(8));
        return vec![Job { title: "as given".into(), config, batch: batch(128) }];
    }
    let (deep, wide) = (DnnConfig::deep(), DnnConfig::wide());
    if !cpu {
        let job = |title: &str, config| Job { title: title.into(), config, batch: batch(BATCH) };
        return vec![job("the seed's deep", deep), job("the seed's wide", wide)];
    }
    let deep = DnnConfig::square(deep.width, deep.depth / 32);
    let wide = DnnConfig::square(wide.width / 8, wide.depth);
    vec![
        Job { title: "the seed's deep, depth / 32, batch / 16".into(), config: deep, batch: batch(BATCH / 16) },
        Job { title: "the seed's wide, width / 8, batch / 16".into(), config: wide, batch: batch(BATCH / 16) },
    ]
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let choice = args.adapter.clone().map_or(AdapterChoice::Best, AdapterChoice::Named);
    let session = Session::open_blocking(&choice)?;
    println!("adapter: {}", session.adapter());
    let peak = peak(&session)?;
    let theoretical = theoretical_flops(&session.adapter().name);
    let sheet = theoretical.map_or("not known".into(), |f| format!("{:.1} TFLOP/s", f / 1e12));
    println!(
        "f32 peak: measured {:.3} TFLOP/s, data sheet {sheet}; copy {:.1} GB/s",
        peak.flops / 1e12,
        peak.bytes / 1e9
    );
    for job in jobs(args, session.caps().cpu) {
        table(&session, args, &job, peak)?;
    }
    Ok(())
}

fn table(session: &Session, args: &Args, job: &Job, peak: Peak) -> Result<(), Box<dyn Error>> {
    let DnnConfig { width, depth, .. } = job.config;
    println!("\n{}: {depth} layers of {width}, batch {}", job.title, job.batch);
    let graph = Dnn::new(job.config.clone()).build(job.batch)?;
    let kind = match args.init {
        InitArg::Default => Init::Default,
        InitArg::He => Init::He,
    };
    let params = init(&graph.layout, kind, 0)?;
    let input = graph.inputs().next().ok_or("the model has no input")?.1.outputs[0].clone();
    // any numbers that are not all alike
    let values: Vec<f64> = (0..input.shape.elements()).map(|i| ((i * 7919 % 2003) as f64 - 1001.0) / 578.0).collect();
    let x = Tensor::from_f64(input, &values);
    println!(
        "{:<9} {:>10} {:>8} {:>10} {:>11} {:>10} {:>9} {:>12}",
        "mode", "ms", "submits", "dispatches", "host µs", "GFLOP/s", "of peak", "planned MiB"
    );
    let modes = [(ModeArg::Eager, Mode::Eager), (ModeArg::Recorded, Mode::Recorded), (ModeArg::Fused, Mode::Fused)];
    for (arg, mode) in modes {
        if !args.mode.is_empty() && !args.mode.contains(&arg) {
            continue;
        }
        let program = session.compile(&graph, &params, &CompileOptions::mode(mode))?;
        let (mut walls, mut hosts, mut submits) = (Vec::new(), Vec::new(), 0);
        for i in 0..=args.runs {
            let begin = Instant::now();
            let run = program.submit_unread(&[("input", &x)])?;
            let host = run.host_ns();
            submits = run.submits();
            run.wait()?;
            if i > 0 {
                walls.push(begin.elapsed().as_nanos() as u64);
                hosts.push(host);
            }
        }
        let seconds = median(walls) / 1e9;
        let rate = program.compiled().recording.estimate().flops / seconds;
        let mib = program.plan().total() as f64 / f64::from(1 << 20);
        println!(
            "{:<9} {:>10.3} {submits:>8} {:>10} {:>11.1} {:>10.1} {:>8.1}% {mib:>12.1}",
            mode.to_string(),
            seconds * 1e3,
            program.dispatches(),
            median(hosts) / 1e3,
            rate / 1e9,
            100.0 * rate / peak.flops
        );
    }
    Ok(())
}

fn median(values: Vec<u64>) -> f64 {
    stats(values).map_or(f64::NAN, |s| s.median)
}
