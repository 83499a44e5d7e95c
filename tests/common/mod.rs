//! In: graphs with parameters and inputs; out: a failure where what an adapter computes is not what the f64 reference
//! does. Opens one adapter for a test binary; knows the public API alone.
#![allow(dead_code, reason = "each test binary uses its own part")]

#[path = "../written/mod.rs"]
pub mod written;

use kiln::Error;
use kiln::caps::DeviceCaps;
use kiln::gpu::{AdapterChoice, GpuError};
use kiln::graph::{Builder, DType, Graph, GraphError, TensorType, ValueId};
use kiln::reference::{Value, evaluate_all};
use kiln::select::Overlap;
use kiln::session::{CompileOptions, Mode, Outputs, Program, Session};
use kiln::tensor::Tensor;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

pub use written::Result;

/// Tensors by name.
pub type Named = BTreeMap<String, Tensor>;

/// What f32 may lose in these tests, as `‖out − ref‖ / ‖ref‖`.
pub const F32: f64 = 1e-5;
/// What f16 may lose.
pub const F16: f64 = 2e-3;

/// The adapter. Without one a test is skipped and says so; under `KILN_REQUIRE_ADAPTER` it fails.
pub fn session() -> Option<&'static Session> {
    static SESSION: OnceLock<Option<Session>> = OnceLock::new();
    let open = || match Session::open_blocking(&AdapterChoice::Best) {
        Ok(session) => Some(session),
        Err(Error::Gpu(GpuError::NoAdapter { .. })) if std::env::var_os("KILN_REQUIRE_ADAPTER").is_none() => None,
        Err(error) => panic!("{error}"),
    };
    let session = SESSION.get_or_init(open).as_ref();
    if session.is_none() {
        println!("skipped: no adapter");
    }
    session
}

/// How a graph is run in a test; memory is always poisoned.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub mode: Mode,
    /// Tiled kernels, else the direct ones.
    pub tiled: bool,
    /// With run-time checks in the kernels.
    pub checked: bool,
}

const fn setup(mode: Mode, tiled: bool, checked: bool) -> Setup {
    Setup { mode, tiled, checked }
}

/// Every mode with direct kernels and checks, and with tiled ones and without. Kernels that know no tiles run both ways.
pub const EVERY: [Setup; 6] = [
    setup(Mode::Eager, false, true),
    setup(Mode::Eager, true, false),
    setup(Mode::Recorded, false, true),
    setup(Mode::Recorded, true, false),
    setup(Mode::Fused, false, true),
    setup(Mode::Fused, true, false),
];

/// As written with direct kernels and checks, fused with tiled kernels and without.
pub const BOTH: [Setup; 2] = [EVERY[2], EVERY[5]];

/// What [`EVERY`] leaves out for the time that a CPU takes to compile a kernel anew: tiles with checks, and direct
/// kernels without.
pub const OTHERS: [Setup; 2] = [setup(Mode::Recorded, true, true), setup(Mode::Fused, false, false)];

impl Setup {
    pub fn options(self, session: &Session) -> CompileOptions {
        // with checks as on devices that have no 64-bit integers
        let int64 = session.caps().int64 && !self.checked;
        let limits = Some(DeviceCaps { cpu: !self.tiled, int64, ..session.caps().clone() });
        // of the fused ones all that may run side by side do
        let overlap = if self.tiled { Overlap::Always } else { Overlap::Never };
        let (mode, checked) = (self.mode, self.checked);
        CompileOptions { mode, checked, poison: true, limits, overlap, ..CompileOptions::default() }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels = if self.tiled { "tiled" } else { "direct" };
        write!(f, "{}, {kernels} kernels, {}", self.mode, if self.checked { "checked" } else { "unchecked" })
    }
}

/// A graph's program in each setup, its states set from those inputs that are named like them.
pub fn each(
    graph: &Graph,
    params: &Named,
    inputs: &Named,
    setups: &[Setup],
    mut run: impl FnMut(Setup, &Program, &[(&str, &Tensor)]),
) {
    let Some(session) = session() else { return };
    let given: Vec<(&str, &Tensor)> =
        graph.inputs().filter_map(|(_, n)| inputs.get_key_value(&n.name)).map(|(n, t)| (n.as_str(), t)).collect();
    for setup in setups {
        let program = session
            .compile(graph, params, &setup.options(session))
            .unwrap_or_else(|e| panic!("compile ({setup}): {e}\n{graph}"));
        for (state, _) in graph.updates() {
            let name = &graph.node(*state).name;
            if let Some(value) = inputs.get(name) {
                program.write_state(name, value).unwrap_or_else(|e| panic!("{name} ({setup}): {e}"));
            }
        }
        run(*setup, &program, &given);
    }
}

/// Runs a graph in each setup, three times if it has states, and compares outputs and states with the reference.
pub fn check(graph: &Graph, params: &Named, inputs: &Named, tolerance: f64, setups: &[Setup]) {
    let runs = if graph.updates().is_empty() { 1 } else { 3 };
    let mut states = BTreeMap::new();
    let mut expected = Vec::new();
    for _ in 0..runs {
        let run = evaluate_all(graph, params, inputs, &states).unwrap_or_else(|e| panic!("reference: {e}\n{graph}"));
        states = run.states.clone();
        expected.push(run);
    }
    let mut faults = Vec::new();
    each(graph, params, inputs, setups, |setup, program, given| {
        for (i, want) in expected.iter().enumerate() {
            let outputs = program.run(given).unwrap_or_else(|e| panic!("run {i} ({setup}): {e}"));
            let mut compare = |kind: &str, name: &str, got: &Tensor, want: &Value| {
                let found = difference(got, want, tolerance).err();
                faults.extend(found.map(|e| format!("{kind} \"{name}\" {} ({setup}, run {i}): {e}", got.ty())));
            };
            for (name, want) in &want.outputs {
                compare("output", name, &outputs[name], want);
            }
            for (name, want) in &want.states {
                let got = program.read_state(name).unwrap_or_else(|e| panic!("{name} ({setup}): {e}"));
                compare("state", name, &got, want);
            }
        }
    });
    assert!(faults.is_empty(), "{}\n{graph}", faults.join("\n"));
}

/// Compares with the reference, see [`check`], and two runs with each other, bit for bit.
pub fn repeats(case: Case, tolerance: f64, setups: &[Setup]) {
    let (graph, params, inputs) = case.finish();
    check(&graph, &params, &inputs, tolerance, setups);
    each(&graph, &params, &inputs, setups, |setup, program, given| {
        let [first, second] = [0, 1].map(|_| program.run(given).unwrap_or_else(|e| panic!("run ({setup}): {e}")));
        for (name, value) in &first {
            assert_eq!(value.bytes(), second[name].bytes(), "{name} ({setup}): two runs differ");
        }
    });
}

/// Whether an output is the reference's: NaN and infinities at the same places, integers and truth values equal, floats
/// within `‖out − ref‖ ≤ tolerance · ‖ref‖`.
pub fn difference(got: &Tensor, want: &Value, tolerance: f64) -> std::result::Result<(), String> {
    if *got.shape() != want.shape {
        return Err(format!("the shape should be {}", want.shape));
    }
    // as the type can hold it
    let want = Tensor::from_f64(got.ty().clone(), &want.data).to_f64();
    let (mut apart, mut size, mut worst) = (0.0, 0.0, (0, 0.0));
    let values = got.to_f64();
    for (i, (g, w)) in values.iter().zip(&want).enumerate() {
        let exact = !got.dtype().is_float() || !g.is_finite() || !w.is_finite();
        if exact && !(g == w || g.is_nan() && w.is_nan()) {
            return Err(format!("element {i} is {g}, should be {w}"));
        }
        if !exact {
            apart += (g - w) * (g - w);
            size += w * w;
            if (g - w).abs() > worst.1 {
                worst = (i, (g - w).abs());
            }
        }
    }
    let error = if size > 0.0 { (apart / size).sqrt() } else { apart.sqrt() };
    if error <= tolerance {
        return Ok(());
    }
    let i = worst.0;
    Err(format!("off by {error:.2e}, allowed {tolerance:.0e}; element {i} is {}, should be {}", values[i], want[i]))
}

/// A graph in the making with the values of its inputs and parameters.
#[derive(Default)]
pub struct Case {
    pub b: Builder,
    params: Named,
    inputs: Named,
}

impl Case {
    pub fn new() -> Self {
        Self::default()
    }

    /// An input with its value; inputs are named x0, x1, ….
    pub fn input(&mut self, value: Tensor) -> ValueId {
        let name = format!("x{}", self.inputs.len());
        self.named(&name, value)
    }

    /// An input, or a state to be, of this name.
    pub fn named(&mut self, name: &str, value: Tensor) -> ValueId {
        let id = self.b.input(name, value.ty().clone()).expect("names differ");
        self.inputs.insert(name.to_owned(), value);
        id
    }

    /// A parameter with its value; parameters are named w0, w1, ….
    pub fn parameter(&mut self, value: Tensor) -> ValueId {
        let name = format!("w{}", self.params.len());
        let id = self.b.parameter(&name, value.ty().clone()).expect("names differ");
        self.params.insert(name, value);
        id
    }

    /// Declares an output.
    pub fn output(&mut self, name: impl AsRef<str>, value: std::result::Result<ValueId, GraphError>) {
        let name = name.as_ref();
        let value = value.unwrap_or_else(|e| panic!("{name}: {e}"));
        self.b.output(name, value).unwrap_or_else(|e| panic!("{e}"));
    }

    /// The graph, its parameters and inputs.
    pub fn finish(self) -> (Graph, Named, Named) {
        (self.b.finish().unwrap_or_else(|e| panic!("{e}")), self.params, self.inputs)
    }

    /// Compares with the reference; see [`check`].
    pub fn check(self, tolerance: f64, setups: &[Setup]) {
        let (graph, params, inputs) = self.finish();
        check(&graph, &params, &inputs, tolerance, setups);
    }

    /// Runs in each setup.
    pub fn run(self, setups: &[Setup], mut look: impl FnMut(Setup, Outputs)) {
        let (graph, params, inputs) = self.finish();
        each(&graph, &params, &inputs, setups, |setup, program, given| {
            look(setup, program.run(given).unwrap_or_else(|e| panic!("run ({setup}): {e}")));
        });
    }

    /// Compares outputs with numbers that are known, on the reference and in each setup: every element within
    /// `tolerance · max(1, |number|)`, NaN and infinities at the same places.
    pub fn expect(self, setups: &[Setup], tolerance: f64, want: &[(&str, &[f64])]) {
        let (graph, params, inputs) = self.finish();
        let reference = evaluate_all(&graph, &params, &inputs, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
        for (name, want) in want {
            close(&format!("{name} (reference)"), &reference.outputs[*name].data, want, tolerance);
        }
        each(&graph, &params, &inputs, setups, |setup, program, given| {
            let outputs = program.run(given).unwrap_or_else(|e| panic!("run ({setup}): {e}"));
            for (name, want) in want {
                close(&format!("{name} ({setup})"), &outputs[*name].to_f64(), want, tolerance);
            }
        });
    }
}

/// Fails unless every number is within `tolerance · max(1, |want|)`, NaN and infinities at the same places.
pub fn close(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= tolerance * w.abs().max(1.0);
        assert!(same, "{what}: element {i} is {g}, should be {w}");
    }
}

/// Whether the adapter computes with f16; says so if the test is skipped for it.
pub fn f16() -> bool {
    let has = session().is_some_and(|s| s.caps().f16);
    if !has {
        println!("skipped: no f16");
    }
    has
}

/// F32, and F16 where the adapter has it, each with its tolerance.
pub fn floats() -> Vec<(DType, f64)> {
    let mut all = vec![(DType::F32, F32)];
    if f16() {
        all.push((DType::F16, F16));
    }
    all
}

/// Numbers in −1..1; integers in 0..5.
pub fn random(dtype: DType, dims: &[usize], seed: u64) -> Tensor {
    written::Numbers(seed).tensor(&TensorType::new(dtype, dims), 5)
}

/// Numbers of a type, converted.
pub fn tensor(dtype: DType, dims: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64(TensorType::new(dtype, dims), values)
}

/// The same number everywhere.
pub fn full(dtype: DType, dims: &[usize], value: f64) -> Tensor {
    let ty = TensorType::new(dtype, dims);
    let values = vec![value; ty.shape.elements()];
    Tensor::from_f64(ty, &values)
}
