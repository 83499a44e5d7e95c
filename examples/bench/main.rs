//! Measures the seed's three models beside other programs, cell by cell, each in a process of its own, and puts tables and
//! charts together. `cargo xtask bench` builds what it starts, and starts it.

mod cell;
mod chart;
#[path = "../seed_models/line.rs"]
mod line;
mod markdown;
mod matrix;
mod measure;
mod process;
mod programs;
#[path = "../seed_models/sizes.rs"]
mod sizes;
mod table;
#[cfg(test)]
mod tests;

use cell::{Program, Record, Weights};
use clap::Parser;
use matrix::Wanted;
use measure::{Setting, in_words, now};
use process::Limits;
use programs::{Adapter, Programs};
use sizes::{Model, Phase, Scale};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// Of seconds.
const YEAR: u64 = 365 * 24 * 60 * 60;

#[derive(Parser)]
#[command(name = "cargo xtask bench", about = "Measures the seed's models beside other programs")]
struct Args {
    /// The best adapter, all of the machine, those whose names contain this, or the one at this PCI address.
    #[arg(long, default_value = "best")]
    adapters: String,
    /// Beside which programs.
    #[arg(long, value_enum, value_delimiter = ',')]
    compare: Vec<Program>,
    /// Which models.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Model::Gptlite, Model::Deep, Model::Wide])]
    models: Vec<Model>,
    /// PyTorch's initialisation or He's; the same numbers for every program.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Weights::Default, Weights::He])]
    weights: Vec<Weights>,
    /// Forward passes, training steps.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Phase::Infer, Phase::Train])]
    phases: Vec<Phase>,
    /// kiln's modes.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(matrix::MODES),
        default_values = matrix::MODES)]
    modes: Vec<String>,
    /// kiln's precisions.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(matrix::PRECISIONS),
        default_values = matrix::PRECISIONS)]
    precisions: Vec<String>,
    /// Only cells like PROGRAM/MODEL/SCALE/WEIGHTS/PHASE/VARIANT/PRECISION; a part may be `*` or words between commas, and
    /// parts may be missing at the end. May be given several times.
    #[arg(long, value_name = "CELL")]
    only: Vec<String>,
    /// Full or small sizes; without it, small ones on adapters that are CPUs.
    #[arg(long, value_enum)]
    scale: Option<Scale>,
    /// Timed runs of a cell, after a third as many in flight that warm up, at least 1 s of them.
    #[arg(long, default_value = "30", value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Does not start kiln's programs a second time, which shows what they keep of a first start.
    #[arg(long)]
    one_start: bool,
    /// The run's name, and that of its files; without it, date and adapter.
    #[arg(long)]
    run: Option<String>,
    /// Goes on with a run: cells that its file has are not run again.
    #[arg(long)]
    resume: bool,
    /// With `--resume`: runs cells again that failed; not those that took too long.
    #[arg(long, requires = "resume")]
    retry_failed: bool,
    /// How many of PyTorch's cells begin at once, so that they compile beside each other: they are timed one after the other
    /// once all have ended their first runs. They share the machine's threads.
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    together: u64,
    /// Has torch.compile's variants with fullgraph follow those without and find what these compiled: both make the same
    /// kernels, so that it saves time; it says so beside their first runs.
    #[arg(long)]
    warm_fullgraph: bool,
    /// Seconds that a cell has to compile and end its first run, and kiln's tuned mode those of a tuning besides.
    #[arg(long, default_value = "120", value_parser = clap::value_parser!(u64).range(..YEAR))]
    first_within: u64,
    /// Seconds that it has from then on.
    #[arg(long, default_value = "300", value_parser = clap::value_parser!(u64).range(..YEAR))]
    rest_within: u64,
    /// Seconds after which no further cell is begun; `--resume` takes up the others.
    #[arg(long)]
    seconds: Option<u64>,
    /// Lists the cells, with `--resume` those that are left, and runs nothing.
    #[arg(long)]
    list: bool,
    /// Runs nothing: puts the tables and charts of these runs' files together, under the name that `--run` gives.
    #[arg(long, value_delimiter = ',', value_name = "FILE.jsonl")]
    table: Vec<PathBuf>,
    /// With `--table`: of cells that several runs have, the last file's stand alone; else each run's stands, with its name.
    #[arg(long, requires = "table")]
    supersede: bool,
    /// Where files go.
    #[arg(long, default_value = "benches/results")]
    out: PathBuf,
    /// Folders in which programs lie: seed_models, models.py, kiln-peer-burn, kiln-peer-meganeura.
    #[arg(long, value_delimiter = ',', value_name = "DIR", default_value = "target/release/examples,benches/pytorch")]
    programs: Vec<PathBuf>,
    /// Python with PyTorch.
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Where parameters are kept that other programs read.
    #[arg(long, value_name = "DIR", default_value = "target/bench-weights")]
    parameters: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.table.as_slice() {
        [] => end_with_programs().and_then(|()| measure(&args)),
        runs => assemble(&args.run.clone().unwrap_or_else(|| names(runs)), runs, args.supersede, &args.out),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The adapters that were asked for.
fn adapters(wanted: &str) -> Result<Vec<Adapter>, String> {
    let found = pollster::block_on(kiln::gpu::adapters());
    let chosen = programs::choose(&found, wanted);
    if chosen.is_empty() {
        let names: Vec<String> = found.iter().map(ToString::to_string).collect();
        return Err(format!("no adapter for {wanted:?}; found: {}", names.join(", ")));
    }
    Ok(chosen)
}

/// Has what ends this program, as Ctrl-C, end those that run too.
fn end_with_programs() -> Result<(), String> {
    ctrlc::set_handler(|| process::end_all()).map_err(|e| format!("Ctrl-C cannot be handled: {e}"))
}

fn measure(args: &Args) -> Result<(), String> {
    let adapters = adapters(&args.adapters)?;
    let run = args.run.clone().unwrap_or_else(|| run_name(&adapters, SystemTime::now()));
    let path = args.out.join(format!("{run}.jsonl"));
    let (mut records, broken) = match (path.exists(), args.resume) {
        (false, resume) => {
            if resume {
                println!("there is no run {run} yet: it begins");
            }
            (Vec::new(), 0)
        }
        (true, false) if args.list => (Vec::new(), 0),
        (true, true) => cell::read(&path)?,
        (true, false) => {
            return Err(format!("{} is there; go on with --resume, or name another with --run", path.display()));
        }
    };
    if broken > 0 {
        eprintln!("{}: {broken} lines are no records and passed over", path.display());
    }
    let wanted = Wanted {
        models: args.models.clone(),
        weights: args.weights.clone(),
        phases: args.phases.clone(),
        modes: args.modes.clone(),
        precisions: args.precisions.clone(),
        compare: args.compare.clone(),
        only: args.only.clone(),
    };
    let scratch = tempfile::tempdir().map_err(|e| format!("a folder for what programs keep: {e}"))?;
    process::remove_at_end(scratch.path());
    let programs = Programs {
        folders: args.programs.clone(),
        python: args.python.clone(),
        weights: args.parameters.clone(),
        scratch: scratch.path().to_owned(),
    };
    let limits = Limits { first: Duration::from_secs(args.first_within), rest: Duration::from_secs(args.rest_within) };
    let begin = Instant::now();
    let (mut found, mut left, mut failed) = (0, 0, 0);
    let mut file = None;
    for adapter in &adapters {
        let scale = args.scale.unwrap_or(if adapter.cpu { Scale::Small } else { Scale::Full });
        let why = if adapter.cpu && args.scale.is_none() { ", as it is a CPU" } else { "" };
        println!("adapter: {}, {scale} sizes{why}", adapter.name);
        let mut cells = matrix::cells(&wanted, scale, adapter.cpu);
        if args.warm_fullgraph {
            matrix::fullgraph_last(&mut cells);
        }
        for program in args.compare.iter().filter(|p| !adapter.runs(**p)) {
            println!("{program} chooses its device itself, so that it is run beside the machine's first adapter alone");
            cells.retain(|c| c.program != *program);
        }
        if adapter.cpu && args.precisions.iter().any(|p| matrix::ON_UNITS.contains(&p.as_str())) {
            println!("{} are of products on matrix units, which a CPU lacks: left out", matrix::ON_UNITS.join(" and "));
        }
        let all = cells.len();
        found += all;
        cells.retain(|cell| !cell::has(&records, &adapter.name, cell, args.retry_failed));
        if args.resume {
            println!("{} of {all} cells are there", all - cells.len());
        }
        if args.list {
            cells.iter().for_each(|c| println!("{c}"));
        }
        let has_peak = |r: &Record| matches!(r, Record::Peak { adapter: a, .. } if *a == adapter.name);
        let knows_peak = records.iter().any(has_peak);
        if args.list || all == 0 || cells.is_empty() && knows_peak {
            continue;
        }
        programs.missing(&cells).iter().for_each(|what| println!("{what}: its cells will fail"));
        let file = match &mut file {
            Some(file) => file,
            none => {
                let file = none.insert(open(&path)?);
                let (command, date) = (own_command(std::env::args().skip(1)), now());
                add(file, &mut records, Record::Run { run: run.clone(), date, command })?;
                file
            }
        };
        let (second_start, warm_fullgraph) = (!args.one_start, args.warm_fullgraph);
        let setting = Setting {
            programs: &programs,
            adapter,
            run: &run,
            limits,
            runs: args.runs as usize,
            second_start,
            warm_fullgraph,
        };
        if !knows_peak {
            match setting.peak() {
                Ok(peak) => add(file, &mut records, peak)?,
                Err(why) => println!("{why}; there are no floors without them; --resume measures them once more"),
            }
        }
        let mut ended = 0;
        for group in measure::groups(&cells, args.together as usize) {
            if args.seconds.is_some_and(|s| begin.elapsed().as_secs() >= s) {
                left += group.len();
                continue;
            }
            setting.group(group, |cell, measurement| {
                ended += 1;
                failed += usize::from(matches!(measurement.outcome, cell::Outcome::Failed(_)));
                println!("[{ended}/{}] {cell}: {}", cells.len(), in_words(&measurement.outcome));
                add(file, &mut records, Record::Cell(measurement))
            })?;
        }
    }
    if found == 0 {
        let only = args.only.join(", ");
        return Err(match args.only.is_empty() {
            true => "no cell has all that was asked for".into(),
            false => format!("no cell is like {only:?}; without --only, --list names those that there are"),
        });
    }
    if args.list {
        return Ok(());
    }
    if failed > 0 {
        println!("{failed} cells failed, for the reasons above; --resume --retry-failed --run {run} runs them again");
    }
    if left > 0 {
        println!("{left} cells are left; take them up with --resume --run {run}");
    }
    match has_cells(&records) {
        true => assemble(&run, &[path], false, &args.out),
        // no time was left for one
        false => Ok(()),
    }
}

/// `2026-11-30-nvidia-h200`.
fn run_name(adapters: &[Adapter], now: SystemTime) -> String {
    let date = humantime::format_rfc3339_seconds(now).to_string();
    let words = |name: &str| -> Vec<String> {
        name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_lowercase).collect()
    };
    let what = match adapters {
        [one] => {
            let mut what = words(&one.name);
            what.truncate(2);
            // the address that tells it from another of this name
            what.extend(one.pci.iter().filter(|pci| one.name.contains(*pci)).flat_map(|pci| words(pci)));
            what.join("-")
        }
        _ => "adapters".to_owned(),
    };
    format!("{}-{what}", &date[..10])
}

/// The run's file, on a line of its own.
fn open(path: &Path) -> Result<File, String> {
    let say = |e: std::io::Error| format!("{}: {e}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(say)?;
    }
    let before = if path.exists() { std::fs::read(path).map_err(say)? } else { Vec::new() };
    let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(say)?;
    // the last line was cut off, or written by hand
    if before.last().is_some_and(|byte| *byte != b'\n') {
        file.write_all(b"\n").map_err(say)?;
    }
    Ok(file)
}

/// Writes a record at once, so that a run can be ended at any time.
fn add(file: &mut File, records: &mut Vec<Record>, record: Record) -> Result<(), String> {
    let line = serde_json::to_string(&record).map_err(|e| e.to_string())? + "\n";
    file.write_all(line.as_bytes()).and_then(|()| file.flush()).map_err(|e| e.to_string())?;
    records.push(record);
    Ok(())
}

fn has_cells(records: &[Record]) -> bool {
    records.iter().any(|r| matches!(r, Record::Cell(_)))
}

/// Writes NAME.json, NAME.md and NAME-ADAPTER-MODEL.svg of some runs.
fn assemble(name: &str, runs: &[PathBuf], supersede: bool, out: &Path) -> Result<(), String> {
    let mut records = Vec::new();
    let mut whose: BTreeMap<String, &PathBuf> = BTreeMap::new();
    for path in runs {
        let (found, broken) = cell::read(path)?;
        for run in found.iter().map(Record::run) {
            if let Some(other) = whose.insert(run.to_owned(), path).filter(|other| *other != path) {
                let (one, other) = (other.display(), path.display());
                return Err(format!(
                    "{one} and {other} are both of a run {run}, and ratios are of cells of one run: expected names that \
                     differ; change \"run\" in the lines of one"
                ));
            }
        }
        if broken > 0 {
            eprintln!("{}: {broken} lines are no records and passed over", path.display());
        }
        if !has_cells(&found) {
            return Err(format!(
                "{}: expected lines of JSON, a cell each, as a run writes them; found none",
                path.display()
            ));
        }
        records.extend(found);
    }
    std::fs::create_dir_all(out).map_err(|e| format!("{}: {e}", out.display()))?;
    let tables = table::tables(&records, supersede)?;
    let mut charts = Vec::new();
    for (i, table) in tables.iter().enumerate() {
        for model in [Model::Gptlite, Model::Deep, Model::Wide] {
            let file = match i {
                0 => format!("{name}-{model}.svg"),
                i => format!("{name}-{}-{model}.svg", i + 1),
            };
            if chart::draw(&out.join(&file), table, model)? {
                charts.push((table.name.clone(), model, file));
            }
        }
    }
    let json = serde_json::to_string_pretty(&tables).map_err(|e| e.to_string())?;
    let commands = commands(&records);
    let page = out.join(format!("{name}.md"));
    let before = match std::fs::read_to_string(&page) {
        Ok(before) => before,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        // its notes would be lost
        Err(error) => return Err(format!("{}: {error}; move it away, or name another with --run", page.display())),
    };
    let title = format!("The seed's models: {name}");
    let page = markdown::page(&title, &tables, &charts, &commands, markdown::notes(&before).as_deref());
    for (extension, text) in [("json", json), ("md", page)] {
        let path = out.join(format!("{name}.{extension}"));
        kiln::cache::replace(&path, text.as_bytes()).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// What runs were started with, each once.
fn commands(records: &[Record]) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for record in records {
        if let Record::Run { command, .. } = record
            && !commands.contains(command)
        {
            commands.push(command.clone());
        }
    }
    commands
}

/// The runs' names in a row.
fn names(runs: &[PathBuf]) -> String {
    let stem = |p: &PathBuf| p.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    runs.iter().map(stem).collect::<Vec<_>>().join("+")
}

/// This program's arguments, as one gives them to `cargo xtask bench`: without those that say where this machine has things.
fn own_command(args: impl IntoIterator<Item = String>) -> String {
    const PLACES: [&str; 4] = ["--programs", "--python", "--parameters", "--out"];
    let mut words = vec!["cargo xtask bench".to_owned()];
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if PLACES.contains(&arg.as_str()) {
            args.next();
        } else if !PLACES.iter().any(|p| arg.starts_with(&format!("{p}="))) {
            words.push(if arg.contains([' ', '*']) { format!("'{arg}'") } else { arg });
        }
    }
    words.join(" ")
}
