//! In: a compiled graph and its parameters; out: what the buffers of its weights hold, in the order and layout that
//! select asks for. Knows no device.
//!
//! Weights are made a batch at a time: their parameters are gathered on one thread, and those that are stored transposed
//! are turned on all. When a program is loaded, one batch is made while that before it goes to the device.

use super::Compiled;
use crate::error::Error;
use crate::gpu::Content;
use crate::graph::{DType, ParamLayout, Part, TensorType};
use crate::model::ParamSource;
use crate::select::Weight;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::thread::Scope;

/// Bytes of weights that are in the making at a time.
const BATCH: usize = 64 << 20;

/// What the buffers of weights hold.
pub(super) fn contents(compiled: &Compiled, params: &dyn ParamSource) -> impl Iterator<Item = Result<Content, Error>> {
    batches(compiled, params).flatten()
}

/// [`contents`], made on a thread of the scope while those before are used: two batches ahead at most.
pub(super) fn contents_ahead<'s>(
    scope: &'s Scope<'s, '_>,
    compiled: &'s Compiled,
    params: &'s dyn ParamSource,
) -> Box<dyn Iterator<Item = Result<Content, Error>> + 's> {
    if threads() == 1 {
        return Box::new(contents(compiled, params));
    }
    let (to, from) = sync_channel(1);
    scope.spawn(move || {
        for batch in batches(compiled, params) {
            // whoever has met an error takes no more
            if to.send(batch).is_err() {
                return;
            }
        }
    });
    Box::new(from.into_iter().flatten())
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// One batch after the other; the first parameter that is missing ends them.
fn batches(compiled: &Compiled, params: &dyn ParamSource) -> impl Iterator<Item = Vec<Result<Content, Error>>> {
    let Compiled { graph, selected, recording, .. } = compiled;
    let mut next = 0;
    std::iter::from_fn(move || {
        let (first, mut bytes) = (next, 0);
        let mut batch = Vec::new();
        while let Some(weight) = selected.weights.get(next).filter(|_| bytes < BATCH) {
            match gather(weight, &graph.layout, params) {
                Ok(raw) => {
                    bytes += raw.bytes.len();
                    batch.push(raw);
                }
                Err(error) => {
                    next = selected.weights.len();
                    return Some(vec![Err(error)]);
                }
            }
            next += 1;
        }
        let places = recording.weights.iter().skip(first);
        let content = |(bytes, &(buffer, offset))| Ok(Content { buffer, offset, bytes });
        (!batch.is_empty()).then(|| turn(batch).into_iter().zip(places).map(content).collect())
    })
}

/// Rows of a matrix, or several matrices, that may have to become columns.
struct Raw {
    bytes: Vec<u8>,
    /// Rows, columns and type of an element of each matrix where it is transposed.
    turned: Option<(usize, usize, DType)>,
}

/// Fails if a parameter that a weight is made of is missing or does not fit.
pub(super) fn check(compiled: &Compiled, params: &dyn ParamSource) -> Result<(), Error> {
    let layout = &compiled.graph.layout;
    // several weights may be made of one storage
    let mut seen = BTreeSet::new();
    for id in compiled.selected.weights.iter().map(|weight| weight.storage).filter(|id| seen.insert(*id)) {
        let storage = layout.get(id);
        storage.parts.iter().try_for_each(|part| check_part(part, storage.dtype, layout, params))?;
    }
    Ok(())
}

/// Fails if one parameter is missing or does not fit.
pub(crate) fn check_part(
    part: &Part,
    dtype: DType,
    layout: &ParamLayout,
    params: &dyn ParamSource,
) -> Result<(), Error> {
    let given = params.ty(&part.name).ok_or_else(|| missing(part, dtype, layout, params))?;
    fits(part, dtype, &given)
}

/// What a storage of this type wants of a parameter.
fn wanted(part: &Part, dtype: DType) -> (String, TensorType) {
    (part.name.clone(), TensorType { dtype, shape: part.shape.clone() })
}

fn missing(part: &Part, dtype: DType, layout: &ParamLayout, params: &dyn ParamSource) -> Error {
    let (name, expected) = wanted(part, dtype);
    Error::MissingParameter { name, expected, unused: unused(layout, params) }
}

/// Fails unless what was given has the parameter's shape and converts to the storage's type.
fn fits(part: &Part, dtype: DType, given: &TensorType) -> Result<(), Error> {
    let converts = given.dtype == dtype || given.dtype.is_float() && dtype.is_float();
    if given.shape == part.shape && converts {
        return Ok(());
    }
    let (name, expected) = wanted(part, dtype);
    Err(Error::ParameterType { name, expected, got: given.clone() })
}

/// A weight's storage, or those of its rows that are wanted: its parameters one after the other.
fn gather(weight: &Weight, layout: &ParamLayout, params: &dyn ParamSource) -> Result<Raw, Error> {
    let storage = layout.get(weight.storage);
    let size = storage.dtype.size();
    let (rank, row) = (storage.shape.rank(), storage.shape.last() * size);
    let wanted = match &weight.columns {
        Some(columns) if rank == 2 => columns.start * row..columns.end * row,
        // a stack is stored whole
        _ => 0..storage.shape.elements() * size,
    };
    let mut bytes = Vec::with_capacity(wanted.len());
    let mut at = 0;
    for part in &storage.parts {
        let given = params.get(&part.name).ok_or_else(|| missing(part, storage.dtype, layout, params))?;
        fits(part, storage.dtype, given.ty())?;
        let cast = (given.dtype() != storage.dtype).then(|| given.cast(storage.dtype));
        let whole = cast.as_ref().map_or(given.bytes(), |cast| cast.bytes());
        let (from, to) = (wanted.start.max(at), wanted.end.min(at + whole.len()));
        bytes.extend_from_slice(whole.get(from.saturating_sub(at)..to.saturating_sub(at)).unwrap_or_default());
        at += whole.len();
    }
    if weight.exponents {
        let exponent = |word: &[u8]| u32::from_le_bytes([word[0], word[1], word[2], word[3]]) >> 23 & 0xff;
        let largest = |row: &[u8]| row.chunks_exact(size).map(exponent).max().unwrap_or(0);
        let bytes = bytes.chunks_exact(row).flat_map(|row| largest(row).to_le_bytes()).collect();
        return Ok(Raw { bytes, turned: None });
    }
    let turned = weight.columns.as_ref().map(|c| (c.len(), row / size, storage.dtype));
    Ok(Raw { bytes, turned })
}

/// What is given and is no parameter of the layout.
fn unused(layout: &ParamLayout, params: &dyn ParamSource) -> Vec<String> {
    let known: BTreeSet<&str> = layout.parameters().map(|(part, _)| part.name.as_str()).collect();
    params.names().into_iter().filter(|name| !known.contains(name.as_str())).collect()
}

/// Rows of a transposed matrix that one thread makes at a time.
struct Task<'a> {
    from: &'a [u8],
    /// Rows and columns of the matrix and type of an element.
    sizes: (usize, usize, DType),
    first: usize,
    to: &'a mut [u8],
}

/// Bytes of a task: some hundred microseconds.
const TASK: usize = 1 << 20;

/// All of a batch as it is stored.
fn turn(batch: Vec<Raw>) -> Vec<Vec<u8>> {
    let mut made: Vec<Vec<u8>> =
        batch.iter().map(|raw| raw.turned.map_or(Vec::new(), |_| vec![0; raw.bytes.len()])).collect();
    let mut tasks = Vec::new();
    for (from, to) in batch.iter().zip(&mut made) {
        let Some(sizes @ (rows, columns, dtype)) = from.turned else { continue };
        let row = rows * dtype.size();
        let rows_of_task = (TASK / row.max(1)).max(1);
        let matrix = (row * columns).max(1);
        for (from, to) in from.bytes.chunks(matrix).zip(to.chunks_mut(matrix)) {
            let pieces = to.chunks_mut((rows_of_task * row).max(1)).enumerate();
            tasks.extend(pieces.map(|(i, to)| Mutex::new(Task { from, sizes, first: i * rows_of_task, to })));
        }
    }
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut task = task.lock().unwrap_or_else(PoisonError::into_inner);
            let Task { from, sizes, first, to } = &mut *task;
            match *sizes {
                (rows, columns, DType::F16 | DType::BF16) => transpose::<2>(from, rows, columns, *first, to),
                (rows, columns, _) => transpose::<4>(from, rows, columns, *first, to),
            }
        }
    };
    let threads = threads().min(tasks.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    drop(tasks);
    let as_it_is = |(raw, made): (Raw, Vec<u8>)| if raw.turned.is_some() { made } else { raw.bytes };
    batch.into_iter().zip(made).map(as_it_is).collect()
}

/// Some rows, from `first` on, of the transpose of a (rows, columns) matrix of elements of N bytes, in square blocks that
/// stay in cache.
fn transpose<const N: usize>(from: &[u8], rows: usize, columns: usize, first: usize, to: &mut [u8]) {
    const BLOCK: usize = 32;
    let (from, _) = from.as_chunks::<N>();
    let (to, _) = to.as_chunks_mut::<N>();
    let count = to.len() / rows.max(1);
    for r0 in (0..rows).step_by(BLOCK) {
        for c0 in (0..count).step_by(BLOCK) {
            for c in c0..count.min(c0 + BLOCK) {
                for r in r0..rows.min(r0 + BLOCK) {
                    to[c * rows + r] = from[r * columns + first + c];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element (r, c) is r·1000 + c.
    fn matrix<T>(rows: usize, columns: usize, bytes: impl Fn(u32) -> T) -> Vec<T> {
        (0..rows * columns).map(|i| bytes((i / columns * 1000 + i % columns) as u32)).collect()
    }

    #[test]
    fn weights_of_any_size_are_turned_whatever_the_thread() {
        // the last is cut into tasks
        for (rows, columns) in [(1, 1), (1, 70), (70, 1), (33, 65), (0, 3), (900, 700)] {
            let words = matrix(rows, columns, u32::to_le_bytes).concat();
            let halves = matrix(rows, columns, |v| (v as u16).to_le_bytes()).concat();
            let as_it_is = Raw { bytes: words.clone(), turned: None };
            let batch = vec![
                Raw { bytes: words.clone(), turned: Some((rows, columns, DType::F32)) },
                as_it_is,
                Raw { bytes: halves, turned: Some((rows, columns, DType::F16)) },
                Raw { bytes: [&words[..], &words].concat(), turned: Some((rows, columns, DType::F32)) },
            ];
            let made = turn(batch);
            let at = |i: usize| (i % rows * 1000 + i / rows) as u32;
            assert_eq!(made[0], (0..rows * columns).flat_map(|i| at(i).to_le_bytes()).collect::<Vec<u8>>());
            assert_eq!(made[1], words);
            assert_eq!(made[3], [&made[0][..], &made[0]].concat());
            assert_eq!(made[2], (0..rows * columns).flat_map(|i| (at(i) as u16).to_le_bytes()).collect::<Vec<u8>>());
        }
    }
}
