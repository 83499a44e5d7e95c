//! Random graphs on the adapter: as written and fused they give the reference's numbers, and planned slots give the
//! bits that buffers of their own give. Memory is NaN until it is written.

mod device;
mod random;
mod written;

use device::{Named, direct, noise, poisoned, session, tiled};
use kiln::graph::{Binary, DType, Graph, GraphError, Op, Rewriter, Unary, ValueId};
use kiln::reference::{Evaluation, evaluate_all, evaluate_nodes};
use kiln::select::Overlap;
use kiln::session::{CompileOptions, Mode, Outputs, Session};
use kiln::tensor::Tensor;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use random::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// Graphs that are run, and graphs with gradients.
const GRAPHS: usize = 12;
const WITH_GRADIENTS: usize = 6;

/// Rounding as a device does it, as a share of each number: f32 with room for exp and its kin, f16 to its last digit.
fn rounding(dtype: DType) -> f64 {
    if dtype == DType::F16 { 1.0 / 1024.0 } else { 1e-6 }
}

/// The graph with every number that a node makes multiplied by an input near 1: what comes of it tells how much
/// rounding on the way moves each result.
fn noisy(graph: &Graph, seed: u64, inputs: &Named) -> Result<(Graph, Named), GraphError> {
    let mut r = Rewriter::new(graph);
    let mut inputs = inputs.clone();
    for (id, node) in graph.nodes() {
        let new = r.copy(id)?;
        if matches!(node.op, Op::Input | Op::Parameter(_)) {
            continue;
        }
        for (output, ty) in node.outputs.iter().enumerate().filter(|(_, t)| t.dtype.is_float()) {
            let name = format!("noise {} {output}", id.0);
            let near_1 = |i| 1.0 + rounding(ty.dtype) * noise(seed + id.0 as u64 * 7, i).signum();
            let values: Vec<f64> = (0..ty.shape.elements()).map(near_1).collect();
            inputs.insert(name.clone(), Tensor::from_f64(ty.clone(), &values));
            let factor = r.new.push_input(ty.clone(), name);
            let value = ValueId { node: new, output };
            let moved = r.new.push(Op::Binary(Binary::Mul), vec![value, factor.into()], "moved")?;
            r.set(ValueId { node: id, output }, moved.into());
        }
    }
    Ok((r.finish()?, inputs))
}

/// Numbers of one output or state, and how far each may be off; `None` where rounding decides what it is.
type Expected = BTreeMap<String, Vec<Option<(f64, f64)>>>;

fn expected(graph: &Graph, params: &Named, inputs: &Named) -> Expected {
    let all = |graph: &Graph, inputs: &Named| -> BTreeMap<String, Vec<f64>> {
        let Evaluation { outputs, states } = evaluate_all(graph, params, inputs, &BTreeMap::new()).unwrap();
        let states = states.into_iter().map(|(name, v)| (format!("state {name}"), v));
        outputs.into_iter().chain(states).map(|(name, v)| (name, v.data)).collect()
    };
    let exact = all(graph, inputs);
    let moved: Vec<_> = (0..4)
        .map(|seed| {
            let (graph, inputs) = noisy(graph, seed, inputs).unwrap();
            all(&graph, &inputs)
        })
        .collect();
    let bound = |name: &String, i: usize, x: f64| {
        let others = || moved.iter().map(|m| m[name][i]);
        if !x.is_finite() {
            return others().all(|y| y == x || y.is_nan() && x.is_nan()).then_some((x, 0.0));
        }
        let most = others().map(|y| (y - x).abs()).fold(0.0, f64::max);
        most.is_finite().then_some((x, 8.0 * most + 1e-6 * x.abs().max(1.0)))
    };
    let bounds = |(name, values): (&String, &Vec<f64>)| {
        (name.clone(), values.iter().enumerate().map(|(i, x)| bound(name, i, *x)).collect())
    };
    exact.iter().map(bounds).collect()
}

/// Whether f32 holds every number on the way, so that the reference's f64 is no other arithmetic, and no infinity has
/// its sign from a zero, whose sign is not promised.
fn tame(graph: &Graph, params: &Named, inputs: &Named) -> bool {
    let values = evaluate_nodes(graph, params, inputs).unwrap();
    graph.nodes().zip(&values).all(|((_, node), values)| {
        let of_zero = matches!(node.op, Op::Unary(Unary::Rsqrt) | Op::Binary(Binary::Div | Binary::Pow));
        let tame = |x: f64| x == 0.0 || (1e-6..1e6).contains(&x.abs()) || x.is_nan() || x.is_infinite() && !of_zero;
        values.iter().flat_map(|v| &v.data).all(|x| tame(*x))
    })
}

/// Outputs, and states under their names with "state " in front.
fn run(session: &Session, graph: &Graph, params: &Named, inputs: &Named, options: &CompileOptions) -> Outputs {
    let program = session.compile(graph, params, options).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let states: Vec<String> = program.compiled().recording.states.iter().map(|s| s.port.name.clone()).collect();
    for name in &states {
        program.write_state(name, &inputs[name]).unwrap();
    }
    let given: Vec<(&str, &Tensor)> =
        device::refs(inputs).into_iter().filter(|i| !states.iter().any(|s| s == i.0)).collect();
    let mut all = program.run(&given).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    for name in states {
        all.insert(format!("state {name}"), program.read_state(&name).unwrap());
    }
    all
}

/// Fails at a number that is too far off; returns how many were compared.
fn compare(what: &str, got: &Outputs, expected: &Expected) -> usize {
    assert_eq!(got.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    let mut compared = 0;
    for (name, expected) in expected {
        let got = got[name].to_f64();
        assert_eq!(got.len(), expected.len(), "{what}: {name}");
        for (i, (g, e)) in got.iter().zip(expected).enumerate() {
            let Some((e, most)) = *e else { continue };
            compared += 1;
            let same = *g == e || g.is_nan() && e.is_nan() || (g - e).abs() <= most;
            assert!(same, "{what}: {name}[{i}] is {g}, expected {e} ± {most:e}");
        }
    }
    compared
}

/// Runs so many of the graphs that are planned and finished; how often each op occurs in them.
fn run_all(
    session: &Session,
    plans: impl Strategy<Value = Plan>,
    count: usize,
    finish: impl Fn(Graph) -> Graph,
) -> BTreeMap<String, usize> {
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut ops = BTreeMap::new();
    let (mut graphs, mut tried, mut compared, mut all) = (0, 0, 0, 0);
    while graphs < count {
        tried += 1;
        assert!(tried < 200 * count, "only {graphs} of {tried} graphs can be compared");
        let plan = plans.new_tree(&mut runner).unwrap().current();
        if plan.dtype == DType::F16 && !session.caps().f16 {
            continue;
        }
        let graph = finish(random::graph(&plan).unwrap());
        let casts_to_f16 = graph.nodes().any(|(_, n)| n.outputs.iter().any(|t| t.dtype == DType::F16));
        let (params, inputs) = written::values(&graph, tried as u64);
        if casts_to_f16 && !session.caps().f16 || !tame(&graph, &params, &inputs) {
            continue;
        }
        graphs += 1;
        random::count(&graph, &mut ops);
        let expected = expected(&graph, &params, &inputs);
        all += (2 + usize::from(graphs % 4 == 0)) * expected.values().map(Vec::len).sum::<usize>();
        let kernels = |options| if graphs % 2 == 0 { direct(session, options) } else { tiled(session, options) };
        for mode in [Mode::Recorded, Mode::Fused] {
            let shared = run(session, &graph, &params, &inputs, &kernels(poisoned(mode)));
            compared += compare(&format!("graph {tried}, {mode}:\n{graph}"), &shared, &expected);
            let options = kernels(CompileOptions { alias: false, ..poisoned(mode) });
            let apart = run(session, &graph, &params, &inputs, &options);
            assert_eq!(shared, apart, "graph {tried}, {mode}, in slots and in buffers of their own:\n{graph}");
        }
        let beside = kernels(CompileOptions { overlap: Overlap::Always, ..poisoned(Mode::Fused) });
        let one_by_one = kernels(CompileOptions { overlap: Overlap::Never, ..poisoned(Mode::Fused) });
        let [beside, one_by_one] = [beside, one_by_one].map(|o| run(session, &graph, &params, &inputs, &o));
        assert_eq!(beside, one_by_one, "graph {tried}, side by side and one by one:\n{graph}");
        if graphs % 4 > 0 {
            continue;
        }
        let checked = kernels(CompileOptions { checked: true, ..poisoned(Mode::Fused) });
        compared += compare("checked", &run(session, &graph, &params, &inputs, &checked), &expected);
    }
    println!("{graphs} of {tried} graphs, {compared} of {all} numbers compared, {ops:?}");
    assert!(compared * 10 > all * 8, "{compared} of {all} numbers compared");
    ops
}

#[test]
fn random_graphs_give_the_reference_s_numbers_in_any_mode_and_memory() {
    let Some(session) = session() else { return };
    let ops = run_all(session, random::plans(), GRAPHS, |graph| graph);
    let missing: BTreeSet<String> = random::every_op().into_iter().filter(|op| !ops.contains_key(op)).collect();
    assert!(missing.len() <= 8, "no graph has {missing:?}");
}

#[test]
fn gradients_of_random_graphs_are_the_reference_s_in_any_mode_and_memory() {
    let Some(session) = session() else { return };
    let finish = |graph| random::training::with_gradients(&graph).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let ops = run_all(session, random::training_plans(), WITH_GRADIENTS, finish);
    let gradients = ops.keys().filter(|op| op.ends_with("_grad")).count();
    assert!(gradients >= 4, "few gradient ops occur: {ops:?}");
}
