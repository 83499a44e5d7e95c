//! Products on matrix units, emulated: everything but the units themselves, against f64.

use crate::common::{Case, F16, Named, Result, difference, random, session};
use crate::emulated::{adapter, kernels, options};
use kiln::MatmulPrecision::{self, High, Medium};
use kiln::caps::DeviceCaps;
use kiln::graph::{Chain, Comparison, DType, Disposition, Graph, Op, Ref, Shape, Step, TensorType, Unary, ValueId};
use kiln::kernel::KernelKey;
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Outputs, Program};
use kiln::tensor::Tensor;

/// What each precision may lose, as `‖out − ref‖ / ‖ref‖`.
const HIGH: f64 = 2e-6;
const MEDIUM: f64 = 1e-3;

/// Runs a graph and compares every output with the reference.
fn check(case: (Graph, Named, Named), options: &CompileOptions, tolerance: f64, look: impl Fn(&Program)) {
    let Some(session) = adapter() else { return };
    let (graph, params, inputs) = case;
    let program = session.compile(&graph, &params, options).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    look(&program);
    let want = evaluate(&graph, &params, &inputs).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let got = run(&program, &graph, &inputs);
    let faults: Vec<String> = want
        .iter()
        .filter_map(|(name, want)| Some(format!("{name}: {}", difference(&got[name], want, tolerance).err()?)))
        .collect();
    assert!(faults.is_empty(), "{:?}:\n{}\n{graph}", options.precision, faults.join("\n"));
}

fn run(program: &Program, graph: &Graph, inputs: &Named) -> Outputs {
    let given: Vec<(&str, &Tensor)> =
        graph.inputs().filter_map(|(_, n)| inputs.get_key_value(&n.name)).map(|(n, t)| (n.as_str(), t)).collect();
    program.run(&given).unwrap_or_else(|e| panic!("{e}\n{graph}"))
}

fn tensor(dims: &[usize], values: impl Fn(usize) -> f64) -> Tensor {
    let ty = TensorType::new(DType::F32, Shape::from(dims.to_vec()));
    let values: Vec<f64> = (0..ty.shape.elements()).map(values).collect();
    Tensor::from_f64(ty, &values)
}

/// Uniform numbers in −1..1, by another name each.
fn uniform(dims: &[usize], seed: u64) -> Vec<f64> {
    random(DType::F32, dims, seed).to_f64()
}

fn product(case: &mut Case, a: Tensor, b: Tensor, [ta, tb]: [bool; 2]) {
    let (shapes, a, b) = (format!("{} {} {ta} {tb}", a.shape(), b.shape()), case.input(a), case.input(b));
    let name = format!("{shapes} of {a:?}");
    let y = case.b.matmul_transposed(a, ta, b, tb);
    case.output(name, y);
}

#[test]
fn high_is_as_exact_as_f32_on_normal_uniform_and_wide_data() {
    let Some(session) = adapter() else { return };
    let [m, k, n] = [33, 530, 40];
    // of two uniform numbers: one normal one, by Box and Muller; one spread over 2^±20
    let normal = |u: f64, v: f64| (-2.0 * (u.abs() + 1e-9).ln()).sqrt() * (std::f64::consts::PI * v).cos();
    let wide = |u: f64, v: f64| (0.5 + v.abs()) * v.signum() * (20.0 * u).exp2();
    let rules: [&dyn Fn(f64, f64) -> f64; 3] = [&normal, &|u, _| u, &wide];
    for (rule, precision, tolerance) in
        [(0, High, HIGH), (1, High, HIGH), (2, High, HIGH), (0, Medium, MEDIUM), (2, Medium, MEDIUM)]
    {
        let matrix = |dims: [usize; 2], seed| {
            let (u, v) = (uniform(&dims, seed), uniform(&dims, seed + 1));
            tensor(&dims, |i| rules[rule](u[i], v[i]))
        };
        let mut case = Case::new();
        product(&mut case, matrix([m, k], 1), matrix([k, n], 3), [false, false]);
        product(&mut case, matrix([k, m], 5), matrix([n, k], 7), [true, true]);
        check(case.finish(), &options(session, 4, precision), tolerance, |program| {
            let wanted = ["exponents", "matmul_units"].repeat(2);
            assert_eq!(kernels(program), wanted);
        });
    }
}

#[test]
fn huge_and_tiny_numbers_neither_overflow_nor_vanish() {
    let Some(session) = adapter() else { return };
    let [m, k, n] = [20, 48, 24];
    for (a, b) in
        [(1e30, 1e-30), (1e-30, 1e30), (1e37, 1.0), (3e38 / 64.0, 1.0), (1e-36, 1.0), (1e-18, 1e-18), (1e18, 1e18)]
    {
        let mut case = Case::new();
        let (left, right) = (uniform(&[m, k], 1), uniform(&[k, n], 2));
        product(&mut case, tensor(&[m, k], |i| a * left[i]), tensor(&[k, n], |i| b * right[i]), [false, false]);
        // a tiny row beside huge ones, and a row and a column of zeros
        let row = |i: usize| [a, 1.0, 0.0, 1.0 / a.sqrt()][i / k % 4] * left[i];
        product(
            &mut case,
            tensor(&[m, k], row),
            tensor(&[k, n], |i| if i % n == 3 { 0.0 } else { b * right[i] }),
            [false, false],
        );
        check(case.finish(), &options(session, 4, High), HIGH, |_| ());
    }
}

#[test]
fn what_is_not_finite_stays_so_in_its_row_and_column_alone() -> Result {
    let Some(session) = adapter() else { return Ok(()) };
    let [m, k, n] = [20, 48, 24];
    for (bad, precision) in [(f64::INFINITY, High), (f64::NEG_INFINITY, Medium), (f64::NAN, High), (f64::NAN, Medium)] {
        let (left, right) = (uniform(&[m, k], 1), uniform(&[k, n], 2));
        let mut case = Case::new();
        let a = tensor(&[m, k], |i| if i == 5 * k + 7 { bad } else { left[i] });
        product(&mut case, a, tensor(&[k, n], |i| if i == 9 * n + 11 { bad } else { right[i] }), [false, false]);
        let (graph, params, inputs) = case.finish();
        let program = session.compile(&graph, &params, &options(session, 4, precision))?;
        let want = &evaluate(&graph, &params, &inputs)?;
        let got = run(&program, &graph, &inputs);
        for (name, want) in want {
            for (i, (g, w)) in got[name].to_f64().iter().zip(&want.data).enumerate() {
                assert_eq!(g.is_finite(), w.is_finite(), "{bad} {precision}: element {i} is {g}, should be {w}");
                assert!(!w.is_finite() || (g - w).abs() < 0.01, "{bad} {precision}: element {i} is {g}, should be {w}");
            }
        }
    }
    Ok(())
}

/// A product whose epilogue adds a bias, is 0 where a further input is not positive, and adds one that it overwrites.
fn fused(graph: &mut Graph, inputs: &mut Named, dtype: DType, [m, k, n]: [usize; 3], [ta, tb]: [bool; 2]) {
    let i = inputs.len();
    let mut input = |dims: &[usize], name: &str| {
        let (name, value) = (format!("{name}{i}"), random(dtype, dims, (i + inputs.len()) as u64));
        let id = graph.push_input(value.ty().clone(), &name);
        inputs.insert(name, value);
        ValueId::from(id)
    };
    let a = input(&if ta { [k, m] } else { [m, k] }, "a");
    let b = input(&if tb { [n, k] } else { [k, n] }, "b");
    let extras = [input(&[n], "bias"), input(&[m, n], "h"), input(&[m, n], "r")];
    let residual = graph.push(Op::Unary(Unary::Neg), vec![extras[2]], "residual").unwrap();
    let add = |a, b| Step::Binary(kiln::graph::Binary::Add, a, b);
    let steps = vec![
        add(Ref::Input(0), Ref::Input(1)),
        Step::Const(0.0.into()),
        Step::Compare(Comparison::LessEqual, Ref::Input(2), Ref::Step(1)),
        Step::Select(Ref::Step(2), Ref::Step(1), Ref::Step(0)),
        add(Ref::Step(3), Ref::Input(3)),
    ];
    let op = Op::FusedMatmul { transpose_a: ta, transpose_b: tb, epilogue: Chain { arity: 4, steps } };
    let y = graph.push(op, vec![a, b, extras[0], extras[1], residual.into()], format!("product {i}")).unwrap();
    graph.push_output(format!("({m}, {k}, {n}) {ta} {tb}"), y.into(), Disposition::Read).unwrap();
}

#[test]
fn every_layout_at_odd_and_whole_sizes_with_an_epilogue() {
    let Some(session) = adapter() else { return };
    // kernels take long to compile on a CPU: all layouts once, then some of them
    let all = [[false, false], [false, true], [true, false], [true, true]];
    for (dtype, precision, tolerance, side, layouts) in [
        (DType::F32, High, HIGH, 4, &all[..]),
        (DType::F32, Medium, MEDIUM, 8, &all[1..2]),
        (DType::F16, MatmulPrecision::Highest, F16, 4, &all[1..3]),
    ] {
        let (mut graph, mut inputs) = (Graph::default(), Named::new());
        for layout in layouts {
            for size in [[65, 37, 31], [96, 64, 64]] {
                fused(&mut graph, &mut inputs, dtype, size, *layout);
            }
        }
        check((graph, Named::new(), inputs), &options(session, side, precision), tolerance, |program| {
            let on_units = kernels(program).iter().filter(|k| **k == "matmul_units").count();
            assert_eq!(on_units, 2 * layouts.len(), "{dtype} {precision}");
            let eights = |s: &kiln::select::Step| matches!(&s.launch.key, KernelKey::Matmul(key) if key.eights);
            let count = program.compiled().selected.steps.iter().filter(|s| eights(s)).count();
            assert_eq!(count, if dtype == DType::F16 { layouts.len() } else { 0 }, "read eight at a time");
        });
    }
}

#[test]
fn batches_and_views() -> Result {
    let Some(session) = adapter() else { return Ok(()) };
    let mut c = Case::new();
    let pairs: [(&[usize], &[usize]); 4] = [
        (&[2, 17, 20], &[2, 20, 18]),
        (&[17, 20], &[3, 20, 16]),
        (&[2, 1, 16, 20], &[3, 20, 24]),
        (&[3, 17, 16], &[16, 20]),
    ];
    for (a, b) in pairs {
        let (x, y) = (c.input(random(DType::F32, a, 3)), c.input(random(DType::F32, b, 4)));
        let z = c.b.matmul(x, y);
        c.output(format!("{a:?} {b:?}"), z);
    }
    let x = c.input(random(DType::F32, &[18, 3, 40], 5));
    let cut = c.b.slice(x, 2, 3, 17)?;
    let heads = c.b.permute(cut, &[1, 0, 2])?; // (3, 18, 17)
    let scores = c.b.matmul_transposed(heads, false, heads, true);
    c.output("heads", scores);
    check(c.finish(), &options(session, 4, High), HIGH, |program| {
        assert_eq!(kernels(program).iter().filter(|k| **k == "matmul_units").count(), 5);
    });
    Ok(())
}

#[test]
fn weights_bring_their_exponents_and_readers_share_those_of_activations() -> Result {
    let Some(session) = adapter() else { return Ok(()) };
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[33, 48], 1));
    for (i, n) in [20, 300].into_iter().enumerate() {
        let (w, bias) = (c.parameter(random(DType::F32, &[n, 48], 2)), c.parameter(random(DType::F32, &[n], 3)));
        let y = c.b.linear(x, w, Some(bias));
        c.output(format!("linear {i}"), y);
    }
    let mut options = options(session, 4, High);
    options.lift = false;
    // the larger weight is cut into pieces
    options.limits.as_mut().expect("limits were set").max_binding_bytes = 32 << 10;
    check(c.finish(), &options, HIGH, |program| {
        let kernels = kernels(program);
        assert_eq!(kernels.iter().filter(|k| **k == "exponents").count(), 1, "{kernels:?}");
        assert!(kernels.iter().filter(|k| **k == "matmul_units").count() > 2, "{kernels:?}");
    });
    Ok(())
}

#[test]
fn exponents_of_both_operands_rows_and_columns_are_found_in_one_launch() -> Result {
    let Some(session) = adapter() else { return Ok(()) };
    let [medium, high] = [(Medium, MEDIUM), (High, HIGH)];
    // four columns at a time or one; rows in one batch or two; more columns than a workgroup takes, and a part; of x and w,
    // then of dy, or each by itself where no more can be bound
    for (lead, [k, n], (precision, tolerance), (bound, launches)) in [
        (&[40][..], [36, 72], medium, (8, 2)),
        (&[2, 300], [140, 37], medium, (8, 2)),
        (&[530], [33, 40], high, (8, 2)),
        (&[40], [36, 72], medium, (5, 3)),
    ] {
        let mut graph = Graph::default();
        let mut inputs = Named::new();
        let mut input = |name: &str, dims: &[usize]| {
            let value = random(DType::F32, dims, dims[dims.len() - 1] as u64);
            let id = graph.push_input(value.ty().clone(), name);
            inputs.insert(name.into(), value);
            ValueId::from(id)
        };
        let (x, w, dy) = (input("x", &[lead, &[k]].concat()), input("w", &[n, k]), input("dy", &[lead, &[n]].concat()));
        let y = graph.push(Op::Linear, vec![x, w], "y").unwrap();
        let dx = Op::Matmul { transpose_a: false, transpose_b: false };
        let dx = graph.push(dx, vec![dy, w], "dx").unwrap();
        let dw = graph.push(Op::LinearGrad { bias: false }, vec![x, dy], "dw").unwrap();
        for (name, value) in [("y", y), ("dx", dx), ("dw", dw)] {
            graph.push_output(name, value.into(), Disposition::Read).unwrap();
        }
        let mut options = options(session, 4, precision);
        options.limits.as_mut().expect("limits were set").max_storage_buffers = bound;
        check((graph, Named::new(), inputs), &options, tolerance, |program| {
            let kernels = kernels(program);
            assert_eq!(kernels.iter().filter(|k| **k == "matmul_units").count(), 3, "{kernels:?}");
            assert_eq!(kernels.iter().filter(|k| **k == "exponents").count(), launches, "{kernels:?}");
        });
    }
    Ok(())
}

#[test]
fn gradients_of_weights_whole_and_in_slices() {
    let Some(session) = adapter() else { return };
    let half = (DType::F16, 4, MatmulPrecision::Highest, F16);
    for (dtype, side, precision, tolerance) in [(DType::F32, 4, High, HIGH), (DType::F32, 8, Medium, MEDIUM), half] {
        for (lead, [k, n], bias) in
            [(&[40][..], [36, 33], true), (&[2, 300], [64, 48], true), (&[700], [16, 40], false)]
        {
            let mut graph = Graph::default();
            let mut inputs = Named::new();
            let mut input = |name: &str, width: usize| {
                let value = random(dtype, &[lead, &[width]].concat(), width as u64);
                let id = graph.push_input(value.ty().clone(), name);
                inputs.insert(name.into(), value);
                ValueId::from(id)
            };
            let (x, dy) = (input("x", k), input("dy", n));
            let node = graph.push(Op::LinearGrad { bias }, vec![x, dy], "grad").unwrap();
            graph.push_output("dw", node.into(), Disposition::Read).unwrap();
            if bias {
                graph.push_output("db", ValueId { node, output: 1 }, Disposition::Read).unwrap();
            }
            check((graph, Named::new(), inputs), &options(session, side, precision), tolerance, |program| {
                assert!(kernels(program).contains(&"matmul_units"), "{:?}", kernels(program));
                let eights = |key: &KernelKey| matches!(key, KernelKey::Matmul(key) if key.eights && key.sums);
                let count = program.compiled().selected.steps.iter().filter(|s| eights(&s.launch.key)).count();
                assert_eq!(count > 0, bias && n == 48 && dtype == DType::F16, "summed as eight at a time are read");
            });
        }
    }
}

/// A square matrix is read where it lies, turned, and as a copy of that: rows of the one are columns of the other.
#[test]
fn a_turned_matrix_and_its_copy_have_exponents_of_their_own() -> Result {
    let Some(session) = adapter() else { return Ok(()) };
    let n = 64;
    let mut graph = Graph::default();
    let mut inputs = Named::new();
    for (gradient_first, along_rows) in [(true, true), (true, false), (false, true), (false, false)] {
        let of = format!("{gradient_first} {along_rows}");
        let mut input = |name: &str, width: usize, scale: &dyn Fn(usize) -> f64| {
            let values = uniform(&[n, width], width as u64);
            let value = tensor(&[n, width], |i| values[i] * scale(i));
            let name = format!("{name} {of}");
            let id = graph.push_input(value.ty().clone(), &name);
            inputs.insert(name, value);
            ValueId::from(id)
        };
        let spread = |i: usize| (if along_rows { i / n } else { i % n } as f64 / 2.0).exp2();
        let (x, stored, w) = (input("x", 48, &|_| 1.0), input("stored", n, &spread), input("w", 40, &|_| 1.0));
        let dy: ValueId = graph.push(Op::Permute(vec![1, 0]), vec![stored], "turned")?.into();
        for gradient in [gradient_first, !gradient_first] {
            let (op, inputs, name) = match gradient {
                true => (Op::LinearGrad { bias: false }, vec![x, dy], "dw"),
                false => (Op::Matmul { transpose_a: false, transpose_b: false }, vec![dy, w], "dx"),
            };
            let node = graph.push(op, inputs, name)?;
            graph.push_output(format!("{name} {of}"), node.into(), Disposition::Read)?;
        }
    }
    check((graph, Named::new(), inputs), &options(session, 4, High), HIGH, |program| {
        let units = kernels(program).iter().filter(|k| **k == "matmul_units").count();
        assert_eq!(units, 8, "{:?}", kernels(program));
    });
    Ok(())
}

#[test]
fn a_precision_that_cannot_be_had_is_reported() -> Result {
    let Some(session) = session() else { return Ok(()) };
    let mut case = Case::new();
    product(&mut case, random(DType::F32, &[32, 32], 1), random(DType::F32, &[32, 32], 2), [false, false]);
    let (graph, params, _) = case.finish();
    let limits = Some(DeviceCaps { units: None, ..session.caps().clone() });
    let program =
        session.compile(&graph, &params, &CompileOptions { precision: High, limits, ..CompileOptions::default() })?;
    let line = "select: precision high asked for, but the device has no f16 matrix units: highest used";
    assert_eq!(program.report().to_string().trim_end(), line);
    assert!(program.describe().graph.findings.iter().any(|f| f.pass == "select"));
    assert_eq!(program.describe().options.precision, "high");
    if !session.caps().f16 {
        return Ok(());
    }
    let mut few = options(session, 4, High);
    few.limits.as_mut().expect("limits were set").max_storage_buffers = 4;
    let program = session.compile(&graph, &params, &few)?;
    let report = program.report().to_string();
    assert!(report.contains("but it would bind 5 buffers, of which the device takes 4: highest used"), "{report}");
    Ok(())
}

#[test]
fn a_linear_s_rows_are_those_of_all_batch_entries() -> Result {
    let Some(session) = adapter() else { return Ok(()) };
    for dims in [&[20, 1, 32][..], &[3, 7, 32], &[2, 3, 4, 32]] {
        let mut case = Case::new();
        let x = case.input(random(DType::F32, dims, 1));
        let w = case.parameter(random(DType::F32, &[24, 32], 2));
        let bias = case.parameter(random(DType::F32, &[24], 3));
        let y = case.b.linear(x, w, Some(bias))?;
        let residual = case.input(random(DType::F32, &[&dims[..dims.len() - 1], &[24]].concat(), 4));
        let y = case.b.add(y, residual);
        case.output("y", y);
        check(case.finish(), &options(session, 4, High), HIGH, |program| {
            assert!(kernels(program).contains(&"matmul_units"), "{dims:?}: {:?}", kernels(program));
        });
    }
    // a row for each position, whatever the batch entry: entries are matrices of their own, of 3 rows
    let mut case = Case::new();
    let x = case.input(random(DType::F32, &[20, 3, 32], 1));
    let w = case.parameter(random(DType::F32, &[24, 32], 2));
    let y = case.b.linear(x, w, None)?;
    let positions = case.parameter(random(DType::F32, &[3, 24], 3));
    let y = case.b.add(y, positions);
    case.output("y", y);
    check(case.finish(), &options(session, 4, High), HIGH, |program| {
        let names = kernels(program);
        let units = names.contains(&"matmul_units");
        assert_eq!(names.contains(&"exponents"), units, "exponents that nothing reads: {names:?}");
    });
    Ok(())
}
