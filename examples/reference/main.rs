//! Runs every model of a folder of reference data through kiln, as written and fused, and prints how far it is from
//! PyTorch in float64: outputs, losses, gradients, and ten steps of Adam. Exits with 1 if a quantity is further off than
//! its tolerance, if a text differs, or if there is nothing to run.

mod check;

use check::{Selection, check, find};
use clap::Parser;
use kiln::MatmulPrecision;
use kiln::gpu::AdapterChoice;
use kiln::session::{CompileOptions, Session};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Compares kiln with reference data")]
struct Args {
    /// Folder with NAME.json, NAME.weights.safetensors and NAME.expected.safetensors.
    dir: PathBuf,
    /// How exact products are: highest, high or medium. High is held to the tolerances of highest.
    #[arg(long, default_value_t = MatmulPrecision::Highest)]
    precision: MatmulPrecision,
    /// Part of the adapter's name.
    #[arg(long)]
    adapter: Option<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let configs = find(&args.dir)?;
    if configs.is_empty() {
        return Err(
            format!("{}: no NAME.json with weights and expected tensors or greedy texts", args.dir.display()).into()
        );
    }
    let choice = args.adapter.clone().map_or(AdapterChoice::Best, AdapterChoice::Named);
    let session = Session::open_blocking(&choice)?;
    println!("adapter: {}", session.adapter());
    println!(
        "{:<16} {:<9} {:>7} {:>10}  {:<34} relative error of tolerance",
        "model", "mode", "submits", "dispatches", "quantity"
    );
    let options = CompileOptions { precision: args.precision, ..CompileOptions::default() };
    if args.precision != MatmulPrecision::Highest && session.caps().units.is_none() {
        println!("precision {}: the device has no f16 matrix units, so products are of the highest", args.precision);
    }
    let what = Selection { options, ..Selection::default() };
    let mut passed = true;
    for config in configs {
        for row in check(&session, &config, &what)? {
            let mark = if row.verdict.passes() { "" } else { "  FAILED" };
            let mode = row.mode.to_string();
            println!(
                "{:<16} {mode:<9} {:>7} {:>10}  {:<34} {}{mark}",
                row.name, row.cost.0, row.cost.1, row.quantity, row.verdict
            );
            passed &= row.verdict.passes();
        }
    }
    println!("{}", if passed { "all within tolerance" } else { "FAILED" });
    Ok(passed)
}
