//! Prints, as the table of docs/precision.md, how far products and attention of each precision are from f64 on this
//! machine's adapter: `‖out − ref‖ / ‖ref‖`, of several outputs the largest, over 64 sampled rows of the large product.
//! Of operands stored in f16 it is the error to the exact result of the unrounded ones.

use clap::Parser;
use kiln::MatmulPrecision;
use kiln::gpu::AdapterChoice;
use kiln::grad::gradients;
use kiln::graph::{Builder, DType, Disposition, Graph, Op, TensorType, ValueId};
use kiln::model::{Dnn, DnnConfig, Init, init};
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Session};
use kiln::tensor::Tensor;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Prints the errors of each op and precision as a table")]
struct Args {
    /// M, N and K of the large product, and rows of all else.
    #[arg(long, default_value_t = 4096)]
    size: usize,
    /// Part of the adapter's name.
    #[arg(long)]
    adapter: Option<String>,
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

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Named = BTreeMap<String, Tensor>;

/// How numbers are drawn.
#[derive(Clone, Copy, Debug)]
enum Data {
    /// Normal, of variance 1.
    Normal,
    /// Uniform in −1..1.
    Uniform,
    /// Either sign, sizes spread evenly over 2^±20 on a logarithmic scale.
    Wide,
}

const ALL: [Data; 3] = [Data::Normal, Data::Uniform, Data::Wide];

impl Data {
    fn tensor(self, dims: &[usize], rng: &mut ChaCha8Rng) -> Tensor {
        let mut unit = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut number = || match self {
            Data::Normal => (-2.0 * unit().max(f64::MIN_POSITIVE).ln()).sqrt() * (std::f64::consts::TAU * unit()).cos(),
            Data::Uniform => 2.0 * unit() - 1.0,
            Data::Wide => {
                let sign = if unit() < 0.5 { -1.0 } else { 1.0 };
                sign * (40.0 * unit() - 20.0).exp2()
            }
        };
        let ty = TensorType::new(DType::F32, dims);
        let values: Vec<f64> = (0..ty.shape.elements()).map(|_| number()).collect();
        Tensor::from_f64(ty, &values)
    }
}

/// A graph of operands of a type, its parameters and inputs in f32, and the rows of its output that are compared, with a
/// graph and inputs that make those alone.
struct Subject {
    name: String,
    graph: Box<dyn Fn(DType) -> Result<Graph>>,
    params: Named,
    inputs: Named,
    rows: Option<(Vec<usize>, Graph, Named)>,
}

/// What the columns hold: how exact products of f32 are, or operands that are stored in f16.
const COLUMNS: [(DType, MatmulPrecision); 4] = [
    (DType::F32, MatmulPrecision::Highest),
    (DType::F32, MatmulPrecision::High),
    (DType::F32, MatmulPrecision::Medium),
    (DType::F16, MatmulPrecision::Highest),
];

fn run(args: &Args) -> Result<()> {
    let choice = args.adapter.clone().map_or(AdapterChoice::Best, AdapterChoice::Named);
    let session = Session::open_blocking(&choice)?;
    println!("{}, `cargo run --release --example precision -- --size {}`\n", session.adapter(), args.size);
    println!("| op | sizes | data | highest | high | medium | stored in f16 |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    for data in ALL {
        for subject in [product(args.size, data, &mut rng)?, gradient(args.size / 8, data, &mut rng)?] {
            row(&session, &subject, data)?;
        }
    }
    // softmax of wide data is one of its columns, at every precision
    for data in [Data::Normal, Data::Uniform] {
        for backward in [false, true] {
            row(&session, &attention(args.size / 8, backward, data, &mut rng)?, data)?;
        }
        row(&session, &stack(args.size / 8, data, &mut rng)?, data)?;
    }
    Ok(())
}

/// One line of the table.
fn row(session: &Session, subject: &Subject, data: Data) -> Result<()> {
    let want = match &subject.rows {
        Some((_, graph, inputs)) => evaluate(graph, &subject.params, inputs)?,
        None => evaluate(&(subject.graph)(DType::F32)?, &subject.params, &subject.inputs)?,
    };
    let mut line = format!("| {} | {} |", subject.name, format!("{data:?}").to_lowercase());
    for (dtype, precision) in COLUMNS {
        if dtype == DType::F16 && !session.caps().f16 {
            line.push_str(" no f16 |");
            continue;
        }
        let options = CompileOptions { precision, ..CompileOptions::default() };
        let program = session.compile(&(subject.graph)(dtype)?, &subject.params, &options)?;
        let stored: Named = subject.inputs.iter().map(|(n, t)| (n.clone(), t.cast(dtype))).collect();
        let given: Vec<(&str, &Tensor)> = stored.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let got = program.run(&given)?;
        let mut most = 0.0_f64;
        for (name, want) in &want {
            let values = got[name].to_f64();
            let width = *got[name].shape().dims().last().unwrap_or(&1);
            let of_row = |r: &usize| values[r * width..(r + 1) * width].to_vec();
            let values: Vec<f64> = match &subject.rows {
                Some((rows, ..)) => rows.iter().flat_map(of_row).collect(),
                None => values,
            };
            let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
            let apart = norm(&mut values.iter().zip(&want.data).map(|(g, w)| g - w));
            let error = apart / norm(&mut want.data.iter().copied());
            // what is no number is the worst
            most = if error > most || error.is_nan() { error } else { most };
        }
        let fell_back = program.report().findings.iter().any(|f| f.pass == "select");
        let mark = if fell_back && dtype == DType::F32 { " (as highest)" } else { "" };
        line.push_str(&match most.is_finite() {
            true => format!(" {most:.1e}{mark} |"),
            false => " overflows |".into(),
        });
    }
    println!("{line}");
    Ok(())
}

/// (size, size) · (size, size).
fn product(size: usize, data: Data, rng: &mut ChaCha8Rng) -> Result<Subject> {
    let graph = move |rows: usize, dtype: DType| -> Result<Graph> {
        let mut b = Builder::new();
        let x = b.input("a", TensorType::new(dtype, [rows, size]))?;
        let y = b.input("b", TensorType::new(dtype, [size, size]))?;
        let z = b.matmul(x, y)?;
        b.output("c", z)?;
        Ok(b.finish()?)
    };
    let (a, b) = (data.tensor(&[size, size], rng), data.tensor(&[size, size], rng));
    let rows: Vec<usize> = (0..size.min(64)).map(|i| (i * 1009 + 17) % size).collect();
    let values = a.to_f64();
    let sampled: Vec<f64> = rows.iter().flat_map(|r| values[r * size..(r + 1) * size].to_vec()).collect();
    let sampled = Tensor::from_f64(TensorType::new(DType::F32, [rows.len(), size]), &sampled);
    let of_rows = (rows.clone(), graph(rows.len(), DType::F32)?, named([("a", sampled), ("b", b.clone())]));
    Ok(Subject {
        name: format!("matmul | {size}³"),
        graph: Box::new(move |dtype| graph(size, dtype)),
        params: Named::new(),
        inputs: named([("a", a), ("b", b)]),
        rows: Some(of_rows),
    })
}

/// The gradient of a linear's weight.
fn gradient(size: usize, data: Data, rng: &mut ChaCha8Rng) -> Result<Subject> {
    let inputs = named([("x", data.tensor(&[4 * size, size], rng)), ("dy", data.tensor(&[4 * size, size], rng))]);
    let graph = move |dtype| -> Result<Graph> {
        let mut graph = Graph::default();
        let ty = TensorType::new(dtype, [4 * size, size]);
        let given: Vec<ValueId> = ["x", "dy"].map(|n| graph.push_input(ty.clone(), n).into()).into();
        let node = graph.push(Op::LinearGrad { bias: false }, given, "grad")?;
        graph.push_output("dw", node.into(), Disposition::Read)?;
        Ok(graph)
    };
    let name = format!("linear's weight gradient | {size} × {size}, {} rows", 4 * size);
    Ok(Subject { name, graph: Box::new(graph), params: Named::new(), inputs, rows: None })
}

/// Causal attention of four heads of 64, or its gradients of a weighted sum of the output.
fn attention(size: usize, backward: bool, data: Data, rng: &mut ChaCha8Rng) -> Result<Subject> {
    let names: &[&str] = if backward { &["q", "k", "v", "dout"] } else { &["q", "k", "v"] };
    let inputs = names.iter().map(|n| ((*n).to_owned(), data.tensor(&[1, size, 256], rng))).collect();
    let graph = move |dtype| -> Result<Graph> {
        let mut b = Builder::new();
        let given = names.iter().map(|n| b.input(n, TensorType::new(dtype, [1, size, 256])));
        let given = given.collect::<std::result::Result<Vec<ValueId>, _>>()?;
        let out = b.attention(given[0], given[1], given[2], 4, 0.125, true, None, None)?;
        if !backward {
            b.output("out", out)?;
            return Ok(b.finish()?);
        }
        let weighted = b.mul(out, given[3])?;
        let weighted = b.cast(weighted, DType::F32)?;
        let loss = b.sum(weighted, &[0, 1, 2])?;
        let mut graph = b.finish()?;
        for (name, gradient) in ["dq", "dk", "dv"].into_iter().zip(gradients(&mut graph, loss, &given[..3])?) {
            graph.push_output(name, gradient, Disposition::Read)?;
        }
        Ok(graph)
    };
    let what = if backward { "causal attention's gradients" } else { "causal attention" };
    let name = format!("{what} | {size} positions, 4 heads of 64");
    Ok(Subject { name, graph: Box::new(graph), params: Named::new(), inputs, rows: None })
}

/// Eight layers of 256 with ReLUs.
fn stack(rows: usize, data: Data, rng: &mut ChaCha8Rng) -> Result<Subject> {
    let dnn = move |dtype| Dnn::new(DnnConfig::square(256, 8)).with_dtype(dtype).build(rows);
    let params = init(&dnn(DType::F32)?.layout, Init::He, 0)?;
    Ok(Subject {
        name: format!("linears with ReLUs | 8 layers of 256, {rows} rows"),
        graph: Box::new(move |dtype| Ok(dnn(dtype)?)),
        params,
        inputs: named([("input", data.tensor(&[rows, 256], rng))]),
        rows: None,
    })
}

fn named<const N: usize>(pairs: [(&str, Tensor); N]) -> Named {
    pairs.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}
