fn merge(a: Partial, b: Partial) -> Partial {
    return a + b;
}

{% include "shared/merge.wgsl" %}
