//! Runs the seed's three models at full size: GPTlite Small (12 layers of 768, S = 2048, batch 1), deep (2048 layers of
//! 256, batch 2048) and wide (3 layers of 8192, batch 2048), forward passes or whole training steps: dropout 0.1 in
//! GPTlite, softmax and then cross entropy of that, Adam at 2e-4 with betas 0.5 and 0.5. Prints times of the modes, for
//! `cargo xtask bench` as lines of JSON; `--verify` compares outputs or gradients with the f64 reference on the CPU.

mod args;
mod line;
mod measure;
mod models;
mod plan;
mod row;
mod sizes;
#[path = "../progress/tuning.rs"]
mod tuning;
mod verify;

use args::{Args, ModeArg};
use clap::Parser;
use kiln::gpu::AdapterChoice;
use kiln::graph::DType;
use kiln::measure::{Peak, peak};
use kiln::model::{init, save};
use kiln::reference::{Value, evaluate};
use kiln::session::Session;
use kiln::tensor::Tensor;
use line::Line;
use measure::TIMED;
use plan::plan;
use row::{Row, measured, print, print_head, write_json};
use sizes::{Model, Phase, Sizes};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

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
    if let Some(folder) = &args.save {
        return save_parameters(args, folder);
    }
    let choice = args.adapter.clone().map_or(AdapterChoice::Best, AdapterChoice::Named);
    let session = Session::open_blocking(&choice)?;
    if !args.lines {
        println!("adapter: {}", session.adapter());
    }
    if args.phase == Phase::Train && args.verify {
        return verify::print_gradients(args, &session);
    }
    if args.kernels && args.runs == 0 {
        return Err("--kernels prints what timed runs took: expected --runs of at least 1, got 0".into());
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
        let whole = args.work(*model)?;
        let params = init(&whole.graph.layout, args.init.into(), 0)?;
        let reference = match args.phase == Phase::Infer && args.verify {
            true => Some(evaluate(&whole.graph, &params, &verify::inputs(&whole))?),
            false => None,
        };
        let also = args.tune && !args.mode.contains(&ModeArg::Tuned);
        for mode in args.mode.iter().chain(also.then_some(&ModeArg::Tuned)) {
            let subject = Subject { sizes: args.sizes(*model), params: &params, reference: reference.as_ref() };
            let row = row(args, &session, &subject, *mode, peak)?;
            match args.lines {
                true => say(&Line::Measured(Box::new(measured(&row))))?,
                false => print(&row),
            }
            rows.push(row);
        }
    }
    write_json(args.json.as_deref(), &rows)?;
    let most = args.precision.tolerances().output;
    match rows.iter().filter_map(|row| row.relative_error).any(|e| e.is_nan() || e > most) {
        true => Err(format!("an output differs from the reference by more than {most:e}").into()),
        false => Ok(()),
    }
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
        let work = args.sizes(*model).infer(DType::F32)?;
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
        let work = args.work(*model)?;
        let params = init(&work.graph.layout, args.init.into(), 0)?;
        for mode in &args.mode {
            let job = plan(args, session, *model, &work, *mode)?.job(args, session, args.work(*model)?, &params)?;
            let costs = job.profile_cost(args.runs.max(1))?;
            for (how, cost) in TIMED.iter().zip(&costs) {
                println!(
                    "{:<8} {:<9} {:<6} {:>6} {:>6} {:>7} {:>10.3} {:>+6.2}% {:>10.3} {:>8.3} {:>10}",
                    model.to_string(),
                    mode.words(),
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
    let work = args.work(model)?;
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
    let findings = program.report().findings.iter().filter(|f| f.pass == "select").map(|f| f.what.clone()).collect();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let tflops = program.compiled().recording.estimate().flops / times.gpu_ms.unwrap_or(times.pipelined_ms) / 1e9;
    Ok(Row {
        phase: format!("{:?}", args.phase).to_lowercase(),
        rows: sizes.rows,
        model: model.to_string(),
        mode: mode.words(),
        precision: format!("{:?}", args.precision).to_lowercase(),
        init: format!("{:?}", args.init).to_lowercase(),
        adapter: session.adapter().name.clone(),
        driver: session.adapter().driver.clone(),
        pci: session.adapter().pci.clone(),
        runs: times.walls.count,
        wall_ms: times.walls.median / 1e6,
        p95_ms: times.walls.p95 as f64 / 1e6,
        min_ms: times.walls.min as f64 / 1e6,
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
        findings,
        tuning_ratio: plan.tuning.and_then(|t| t.ratio),
        relative_error,
        loss,
        checkpoint: args.checkpoint.filter(|_| args.phase == Phase::Train && model == Model::Deep),
    })
}
