{% from "shared/units.wgsl" import put %}
{#
How a workgroup of attention_units.wgsl or attention_grad_units.wgsl goes through the other side: blocks of rows of two
operands, fetched into registers and staged as f16 in the workgroup arrays {{ name }}_{half}, width / 4 + 2 vec4s a row.

`s` says how rows are staged: `block` of them by `threads` invocations, `share` neighbours a row, each with `held` groups of
four columns of `columns` in a matrix' `width`; `ahead` where a block is fetched while the one before it is used; `scaled`
where each row is scaled by a power of two; `words` where four columns are bound as two words of two f16 numbers. Such stay
words until they are staged: what is converted when it is fetched waits for memory there.

Invocation `id` has groups of one row, id / share, where rows are scaled; else the groups id, id + threads and so on of the
block's.
#}
{% macro kind(s) %}{{ "vec2<u32>" if s.words else "vec4<f32>" }}{% endmacro %}
{% macro row(c, s) %}{{ "(id / " ~ s.share ~ "u)" if s.scaled else "((id + " ~ c * s.threads ~ "u) / " ~ s.share ~ "u)" }}{% endmacro %}
{% macro column(c, s) %}{{ "(id % " ~ s.share ~ "u + " ~ c * s.share ~ "u)" if s.scaled else "((id + " ~ c * s.threads ~ "u) % " ~ s.share ~ "u)" }}{% endmacro %}
{# `if` unless all invocations have rows in the block #}
{% macro within(c, s) %}{% if s.ahead and (s.block * s.share) % s.threads != 0 %}if {{ row(c, s) }} < {{ s.block }}u {% endif %}{% endmacro %}

{# before the first block: no row is noted #}
{% macro clear_notes(s) %}
{% if not s.scaled %}
    for (var i = lane; i < {{ s.block }}u; i += {{ s.threads }}u) {
        atomicStore(&broken[i], 0u);
    }
{% endif %}
    if lane == 0u {
        atomicStore(&odd, 0u);
    }
    workgroupBarrier();
{% endmacro %}

{# declares what an invocation holds of the operands #}
{% macro hold(names, s) %}
{% for name in names %}
{% for c in range(s.held) %}
    var {{ name }}_{{ c }} = {{ kind(s) }}();
{% endfor %}
{% endfor %}
{% endmacro %}

{# a group of columns, and what is read there: zeros in those that only fill a matrix #}
{% macro real(column, s) %}{{ "min(" ~ column ~ ", " ~ (s.columns - 1) ~ "u)" if s.columns * 4 != s.width else column }}{% endmacro %}
{% macro filled(four, column, zeros, s) %}{{ "select(" ~ zeros ~ ", " ~ four ~ ", " ~ column ~ " < " ~ s.columns ~ "u)" if s.columns * 4 != s.width else four }}{% endmacro %}

{# reads it; `index` is the row of the operands that $r of the block is #}
{% macro fetch(names, index, s) %}
{% for c in range(s.held) %}
            {
                let c = {{ real(column(c, s), s) }};
                let i = {{ index | replace("$r", row(c, s)) }};
{% for name in names %}
{% set four = name ~ "[at_" ~ name ~ " + i * p." ~ name ~ "_row + c]" if s.words else "read_" ~ name ~ "(at_" ~ name ~ " + i * p." ~ name ~ "_row, c * 4u)" %}
                {{ name }}_{{ c }} = {{ filled(four, column(c, s), kind(s) ~ "()", s) }};
{% endfor %}
            }
{% endfor %}
{% endmacro %}

{# declares `largest_0` and `largest_1`, the bits of the largest magnitudes of the invocation's rows #}
{% macro largest_of(names, s) %}
{% for name in names %}
{% set which = loop.index0 %}
            var largest_{{ which }} = magnitude({{ name }}_0);
{% for c in range(1, s.held) %}
            largest_{{ which }} = max(largest_{{ which }}, magnitude({{ name }}_{{ c }}));
{% endfor %}
{% for by in s.shuffles %}
            largest_{{ which }} = max(largest_{{ which }}, subgroupShuffleXor(largest_{{ which }}, {{ by }}u));
{% endfor %}
{% endfor %}
{% endmacro %}

{# stores what is not scaled; a row that holds an infinity or a NaN as zeros there, with a note of the block, `stamp` #}
{% macro stage(names, stamp, s, u) %}
{% for c in range(s.held) %}
            {{ within(c, s) }}{
                let bad = not_finite({{ names[0] }}_{{ c }}) || not_finite({{ names[1] }}_{{ c }});
                if bad {
                    atomicStore(&odd, {{ stamp }});
                    atomicStore(&broken[{{ row(c, s) }}], {{ stamp }});
                }
                let at = {{ row(c, s) }} * {{ s.width // 4 + 2 }}u + {{ column(c, s) }};
{% for name in names %}
                {{ put(name ~ "_hi", "at", "halves(select(" ~ name ~ "_" ~ c ~ ", " ~ kind(s) ~ "(), bad))", u) }}
{% endfor %}
            }
{% endfor %}
{% endmacro %}

{# stages the block at `at_block` by `staging`, what an invocation `id` does with what it holds, and fetches: where `ahead`,
the next block, which is at `next` unless rows end before; else this one. `index` is as in `fetch` and finds the block's
first row under the name `from` #}
{% macro next_block(names, staging, index, from, next, end, s) %}
{% if s.ahead %}
        {
            let id = lane;
{{ staging }}
        }
        workgroupBarrier();
        // a branch: without, compilers move reads to where they are needed
        if {{ next }} < {{ end }} {
            let id = lane;
            let {{ from }} = {{ next }};
{{ fetch(names, index, s) }}
        }
{% else %}
        for (var id = lane; id < {{ s.block * s.share }}u; id += {{ s.threads }}u) {
            let {{ from }} = at_block;
{{ fetch(names, index, s) }}
{{ staging }}
        }
        workgroupBarrier();
{% endif %}
{% endmacro %}

{# functions of what is not scaled #}
{% macro functions(s) %}
{% if not s.scaled %}

// Whether one of four is an infinity or a NaN.
fn not_finite(x: {{ kind(s) }}) -> bool {
{% if s.words %}
    let over = (x & vec2<u32>(0x7c007c00u)) + vec2<u32>(0x04000400u);
    return ((over.x | over.y) & 0x80008000u) != 0u;
{% else %}
    return !all(abs(x) <= vec4<f32>(65504.0));
{% endif %}
}

fn halves(x: {{ kind(s) }}) -> vec4<f16> {
    return vec4<f16>({{ "vec4<f32>(unpack2x16float(x.x), unpack2x16float(x.y))" if s.words else "x" }});
}
{% endif %}
{% endmacro %}
