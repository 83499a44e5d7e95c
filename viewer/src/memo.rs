//! In: a key and a computation; out: its value, computed again only when the key has changed. Knows nothing else.

/// The last value.
#[derive(Debug)]
pub struct Memo<K, V>(Option<(K, V)>);

impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Memo(None)
    }
}

impl<K: PartialEq, V> Memo<K, V> {
    /// The value for a key.
    pub fn get(&mut self, key: K, compute: impl FnOnce() -> V) -> &V {
        if self.0.as_ref().is_none_or(|(known, _)| *known != key) {
            self.0 = Some((key, compute()));
        }
        &self.0.as_ref().expect("it was just set").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_computes_once_a_key() {
        let mut memo = Memo::default();
        assert_eq!(*memo.get(1, || "a"), "a");
        assert_eq!(*memo.get(1, || unreachable!("the key is the same")), "a");
        assert_eq!(*memo.get(2, || "b"), "b");
    }
}
