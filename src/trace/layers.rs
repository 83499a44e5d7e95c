//! In: the names of dispatches in order; out: [`Layer`]s, runs of neighbours that belong together, nested. Knows names
//! alone.
//!
//! A layer of a name is all before its last dot: `blocks.3.ffwd.net.0` lies in `blocks.3.ffwd.net`, that in
//! `blocks.3.ffwd`, and so on, [`DEEPEST`] at most. What stands in brackets after a name, as in `permute (copy)`, is no
//! part of it.

/// Layers around a name: a model has fewer, a damaged file may have as many as it has bytes.
const DEEPEST: usize = 32;

/// A run of neighbouring dispatches whose names begin alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The path that they share.
    pub path: String,
    /// 0 is outermost.
    pub depth: usize,
    /// First dispatch.
    pub first: usize,
    /// Last dispatch, which is part of it.
    pub last: usize,
}

/// A dispatch's node name without what is done to it.
fn plain(name: &str) -> &str {
    name.split(" (").next().unwrap_or(name)
}

/// The layer of a name at most `depth` parts deep, or "" at the top. A number counts to the part before it:
/// `blocks.3` is one part.
pub fn layer_of(name: &str, depth: usize) -> &str {
    let ends = ends(plain(name));
    match depth.min(ends.len()) {
        0 => "",
        n => &name[..ends[n - 1]],
    }
}

/// Where each enclosing layer of a name ends, outermost first.
fn ends(name: &str) -> Vec<usize> {
    let says = |at: &usize| {
        let rest = &name[at + 1..];
        let part = rest.split('.').next().unwrap_or(rest);
        // `blocks` alone says nothing where `blocks.3` follows
        !(part.bytes().all(|b| b.is_ascii_digit()) && part.len() < rest.len())
    };
    name.match_indices('.').map(|(at, _)| at).filter(says).take(DEEPEST).collect()
}

/// All layers, an outer one before those in it. A layer that holds the same dispatches as the one around it is left
/// out.
pub fn layers<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Layer> {
    let mut open: Vec<Layer> = Vec::new();
    let mut done: Vec<Layer> = Vec::new();
    for (at, name) in names.into_iter().enumerate() {
        let name = plain(name);
        let ends = ends(name);
        let shared = open.iter().zip(&ends).take_while(|(layer, end)| layer.path == name[..**end]).count();
        done.extend(open.drain(shared..));
        open.iter_mut().for_each(|l| l.last = at);
        for (depth, end) in ends.iter().enumerate().skip(shared) {
            open.push(Layer { path: name[..*end].to_owned(), depth, first: at, last: at });
        }
    }
    done.append(&mut open);
    done.sort_by_key(|l| (l.first, l.depth));
    let mut kept: Vec<Layer> = Vec::new();
    let mut around: Vec<(usize, usize)> = Vec::new();
    for mut layer in done {
        while around.last().is_some_and(|(_, last)| *last < layer.first) {
            around.pop();
        }
        if around.last() == Some(&(layer.first, layer.last)) {
            continue;
        }
        layer.depth = around.len();
        around.push((layer.first, layer.last));
        kept.push(layer);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_nest_by_their_names() {
        let names = ["emb", "blocks.0.ln1", "blocks.0.sa.qkv", "blocks.0.sa.proj (copy)", "blocks.1.ln1", "lm_head"];
        let found: Vec<(String, usize, usize, usize)> =
            layers(names).into_iter().map(|l| (l.path, l.depth, l.first, l.last)).collect();
        assert_eq!(
            found,
            [("blocks.0".into(), 0, 1, 3), ("blocks.0.sa".into(), 1, 2, 3), ("blocks.1".into(), 0, 4, 4)]
        );
        assert_eq!(layers([]), []);
    }

    #[test]
    fn a_layer_that_comes_back_is_another_run() {
        let found = layers(["a.x", "b.x", "a.y"]);
        assert_eq!(
            found.iter().map(|l| (l.path.as_str(), l.first)).collect::<Vec<_>>(),
            [("a", 0), ("b", 1), ("a", 2)]
        );
    }

    #[test]
    fn a_layer_inside_one_of_the_same_dispatches_is_left_out() {
        let found = layers(["m.a.b.c", "m.a.b.d"]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].first, found[0].last), ("m", 0, 1));
    }

    #[test]
    fn a_name_of_very_many_parts_is_no_deeper_than_a_model() {
        let (one, other) = ("a.".repeat(50_000), format!("{}b", "a.".repeat(40_000)));
        assert_eq!(layer_of(&one, usize::MAX).len(), 2 * DEEPEST - 1);
        assert_eq!(layers([one.as_str(), other.as_str()]).len(), 1);
    }

    #[test]
    fn numbers_count_to_the_part_before() {
        assert_eq!(layer_of("blocks.3.ffwd.net.0", 1), "blocks.3");
        assert_eq!(layer_of("blocks.3.ffwd.net.0", 2), "blocks.3.ffwd");
        assert_eq!(layer_of("blocks.3.ffwd.net.0", 9), "blocks.3.ffwd.net");
        assert_eq!(layer_of("layers.7", 1), "layers");
        assert_eq!(layer_of("lm_head", 1), "");
        assert_eq!(layer_of("permute (copy of a.b)", 1), "");
    }
}
