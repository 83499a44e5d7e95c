//! Prints the adapters of this machine, the one that kiln takes first. Exits with 1 if there is none.

use kiln::gpu::{AdapterChoice, Gpu, adapters};
use std::process::ExitCode;

fn main() -> ExitCode {
    let found = pollster::block_on(adapters());
    match pollster::block_on(Gpu::open(&AdapterChoice::Best)) {
        Ok(gpu) => {
            println!("adapter: {}", gpu.info());
            for other in found.iter().skip(1) {
                println!("   also: {other}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
