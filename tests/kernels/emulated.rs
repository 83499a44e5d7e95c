//! Programs on emulated matrix units, and what is asked of them.

use crate::common::{Named, session};
use kiln::MatmulPrecision;
use kiln::caps::{DeviceCaps, MatrixUnits};
use kiln::session::{CompileOptions, Outputs, Program, Session};
use kiln::tensor::Tensor;

/// An adapter with f16.
pub fn adapter() -> Option<&'static Session> {
    let session = session().filter(|s| s.caps().f16);
    if session.is_none() {
        println!("skipped: no adapter with f16");
    }
    session
}

/// With emulated units on an adapter that has f16.
pub fn options(session: &Session, side: u32, precision: MatmulPrecision) -> CompileOptions {
    let units = Some(MatrixUnits::Emulated { side });
    let limits = Some(DeviceCaps { cpu: false, units, ..session.caps().clone() });
    CompileOptions { precision, limits, poison: true, ..CompileOptions::default() }
}

pub fn run(program: &Program, inputs: &Named) -> Outputs {
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    program.run(&given).unwrap_or_else(|e| panic!("{e}"))
}

/// The kernels of all launches, in order.
pub fn kernels(program: &Program) -> Vec<&str> {
    program.compiled().selected.steps.iter().map(|s| s.launch.key.name()).collect()
}
