//! In: graphs with parameters and inputs; out: their results on the machine's adapter, compared with the reference's.
//! Knows the public API alone.
#![allow(dead_code, reason = "each test binary uses its own part")]

use kiln::Error;
use kiln::caps::{DeviceCaps, MatrixUnits};
use kiln::gpu::{AdapterChoice, Counters, GpuError};
use kiln::graph::{DType, Graph, TensorType};
use kiln::reference::{Value, evaluate};
use kiln::session::{CompileOptions, Mode, Outputs, Session};
use kiln::tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tensors by name.
pub type Named = BTreeMap<String, Tensor>;

/// The adapter's session, shared by the tests of a binary. Without an adapter the test says so and is over, which
/// `KILN_REQUIRE_ADAPTER` turns into a failure.
pub fn session() -> Option<&'static Session> {
    static SESSION: OnceLock<Option<Session>> = OnceLock::new();
    SESSION.get_or_init(own_session).as_ref()
}

/// A session whose counters and faults no other test touches.
pub fn own_session() -> Option<Session> {
    match Session::open_blocking(&AdapterChoice::Best) {
        Ok(session) => Some(session),
        Err(Error::Gpu(e @ GpuError::NoAdapter { .. })) => {
            assert!(std::env::var_os("KILN_REQUIRE_ADAPTER").is_none(), "{e}");
            println!("skipped: no adapter");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// The options, with a GPU's kernels on any adapter.
pub fn tiled(session: &Session, options: CompileOptions) -> CompileOptions {
    CompileOptions { limits: Some(DeviceCaps { cpu: false, ..session.caps().clone() }), ..options }
}

/// The options, with a CPU's kernels on any adapter.
pub fn direct(session: &Session, options: CompileOptions) -> CompileOptions {
    CompileOptions { limits: Some(DeviceCaps { cpu: true, ..session.caps().clone() }), ..options }
}

/// The options, with emulated matrix units on an adapter that has f16.
pub fn on_units(session: &Session, options: CompileOptions) -> CompileOptions {
    let units = Some(MatrixUnits::Emulated { side: 4 });
    CompileOptions { limits: Some(DeviceCaps { cpu: false, units, ..session.caps().clone() }), ..options }
}

/// With memory that is NaN until the program writes it.
pub fn poisoned(mode: Mode) -> CompileOptions {
    CompileOptions { poison: true, ..CompileOptions::mode(mode) }
}

/// Compiles and runs once.
pub fn run(session: &Session, graph: &Graph, params: &Named, inputs: &Named, options: &CompileOptions) -> Outputs {
    let program = session.compile(graph, params, options).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    program.run(&refs(inputs)).unwrap_or_else(|e| panic!("{e}\n{graph}"))
}

/// Inputs as a program takes them.
pub fn refs(inputs: &Named) -> Vec<(&str, &Tensor)> {
    inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect()
}

/// Fails unless all outputs are the reference's within `tolerance` of the output's largest number, with a GPU's and a
/// CPU's kernels.
pub fn check(session: &Session, graph: &Graph, params: &Named, inputs: &Named, mode: Mode, tolerance: f64) {
    let expected = evaluate(graph, params, inputs).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    for options in [tiled(session, poisoned(mode)), direct(session, poisoned(mode))] {
        let got = run(session, graph, params, inputs, &options);
        let kernels = if options.limits.is_some_and(|l| l.cpu) { "direct" } else { "tiled" };
        assert_close(&format!("{mode}, {kernels}"), &got, &expected, tolerance);
    }
}

/// Fails at the first element that is further from the reference than `tolerance` times its largest number (1 at
/// least); NaN and infinities must be the same.
pub fn assert_close(what: &str, got: &Outputs, expected: &BTreeMap<String, Value>, tolerance: f64) {
    assert_eq!(got.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    for (name, expected) in expected {
        assert_eq!(got[name].shape(), &expected.shape, "{what}: {name}");
        assert_numbers(&format!("{what}: {name}"), &got[name].to_f64(), &expected.data, tolerance);
    }
}

/// [`assert_close`] for numbers.
pub fn assert_numbers(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().filter(|v| v.is_finite()).fold(1.0, |m: f64, v| m.max(v.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let same = g == e || g.is_nan() && e.is_nan() || (g - e).abs() <= tolerance * largest;
        assert!(same, "{what}[{i}]: {g}, expected {e} (largest {largest})");
    }
}

/// Values from a rule, as f32.
pub fn fill(dims: &[usize], f: impl Fn(usize) -> f64) -> Tensor {
    fill_as(DType::F32, dims, f)
}

/// Values from a rule, in any type.
pub fn fill_as(dtype: DType, dims: &[usize], f: impl Fn(usize) -> f64) -> Tensor {
    let ty = TensorType::new(dtype, dims);
    let values: Vec<f64> = (0..ty.shape.elements()).map(f).collect();
    Tensor::from_f64(ty, &values)
}

/// Scattered numbers in −1..1, the same for the same seed.
pub fn noise(seed: u64, i: usize) -> f64 {
    let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xd1b5_4a32_d192_ed03);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Tensors by name, from pairs.
pub fn named<const N: usize>(pairs: [(&str, Tensor); N]) -> Named {
    pairs.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

/// A device's counters at one moment: submits, passes, dispatches, bind groups, pipelines, uploads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counts {
    pub submits: u64,
    pub passes: u64,
    pub dispatches: u64,
    pub bind_groups: u64,
    pub pipelines: u64,
    pub uploads: u64,
}

impl Counts {
    pub fn of(session: &Session) -> Counts {
        let c: &Counters = session.gpu().counters();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            submits: get(&c.submits),
            passes: get(&c.passes),
            dispatches: get(&c.dispatches),
            bind_groups: get(&c.bind_groups),
            pipelines: get(&c.pipelines),
            uploads: get(&c.uploads),
        }
    }

    /// What was done since.
    pub fn since(self, before: Counts) -> Counts {
        Counts {
            submits: self.submits - before.submits,
            passes: self.passes - before.passes,
            dispatches: self.dispatches - before.dispatches,
            bind_groups: self.bind_groups - before.bind_groups,
            pipelines: self.pipelines - before.pipelines,
            uploads: self.uploads - before.uploads,
        }
    }
}
