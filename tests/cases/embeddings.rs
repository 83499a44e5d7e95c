//! Embeddings and their gradients.

use crate::common::{BOTH, Case, EVERY, F32, Result, floats, full, random, tensor};
use kiln::graph::{DType, Op};

/// Equal indices add up, one after the other.
#[test]
fn g02_equal_indices_are_summed() -> Result {
    for (dtype, _) in floats() {
        let mut c = Case::new();
        let ones = c.input(full(dtype, &[4, 3], 1.0));
        let t = c.input(tensor(DType::I32, &[4], &[0.0, 0.0, 1.0, 0.0]));
        let y = c.b.op(Op::EmbeddingGrad(3), &[ones, t]);
        c.output("few", y);
        for width in [1, 4, 64] {
            let ones = c.input(full(dtype, &[4096, width], 1.0));
            let t = c.input(full(DType::I32, &[4096], 2.0));
            let y = c.b.op(Op::EmbeddingGrad(3), &[ones, t]);
            c.output(format!("many {width}"), y);
        }
        let few = [[3.0; 3], [1.0; 3], [0.0; 3]].concat();
        let many = |width: usize| [vec![0.0; 2 * width], vec![4096.0; width]].concat();
        let (one, four, wide) = (many(1), many(4), many(64));
        c.expect(&BOTH, 0.0, &[("few", &few), ("many 1", &one), ("many 4", &four), ("many 64", &wide)]);
    }
    Ok(())
}

/// Memory that is used again between an embedding, a linear and a norm does not change what they give.
#[test]
fn e02_an_embedding_a_linear_and_a_norm() -> Result {
    let mut c = Case::new();
    let t = c.input(random(DType::I32, &[96, 8], 1));
    let table = c.parameter(random(DType::F32, &[5, 192], 2));
    let (w, bias) = (c.parameter(random(DType::F32, &[192, 192], 3)), c.parameter(random(DType::F32, &[192], 4)));
    let g = c.parameter(random(DType::F32, &[192], 5));
    let x = c.b.embedding(table, t)?;
    let y = c.b.linear(x, w, Some(bias))?;
    let y = c.b.add(y, x)?;
    let y = c.b.rmsnorm(y, g, 1e-5);
    c.output("y", y);
    c.check(F32, &EVERY);
    Ok(())
}
