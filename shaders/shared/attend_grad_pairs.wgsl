{% from "shared/attend_rows.wgsl" import each_row, mine, four_of %}
{% from "shared/mask.wgsl" import mask_row %}
{#
A part of main in attention_grad_units.wgsl, for pairs of `pair_rows` queries, from queries_from on, with `pair_columns`
keys, from keys_from on. In: w, the products of queries and keys, and g, those of dout and values, a lane's four keys in
each vec4, so many to a query. Out: alike, for each result what its rows of the other side are multiplied with, `for_` the
result, and the bits of the largest finite magnitude in it, `largest_`.
#}
{% for name, _ in results %}
            var largest_{{ name }} = 0u;
            var for_{{ name }}: array<vec4<f32>, {{ own * fours }}>;
{% endfor %}
{{ each_row(pair_rows, u) }}
{% if s.scaled %}
                let query = queries[at_queries + row];
{% else %}
                let query = vec4<f32>(0.0, 0.0, pairs[{{ "t + row" if keys else "r" }}]);
{% endif %}
                let lse = query.z;
                let delta = query.w;
{% for i in range(fours) %}
                {
                    let e = r * {{ fours }}u + {{ i }}u;
                    let column = {{ mine(i, pair_rows, u) }};
                    var score = w[e];
                    var dw = g[e];
{% if s.scaled %}
                    let key_factor = {{ four_of("key_factors", "at_keys + column") }};
                    // one after the other, as the product of both may not be a number
                    score = score * key_factor * query.x;
                    dw = dw * {{ four_of("value_factors", "at_keys + column") }} * query.y;
{% else %}
                    score *= p.scale;
{% endif %}
                    var hidden = vec4<bool>(false);
                    if hides{{ " || strange" if not s.scaled }} {
                        let i = min(queries_from + row, p.sq - 1u);
                        let j = keys_from + column * 4u;
                        let seen = select(0, end_of_keys(i, valid), queries_from + row < p.sq);
                        let at_m = {{ mask_row("i", mask) }};
{% if not s.scaled %}
{% for e in range(4) %}
                        if strange && atomicLoad(&broken[t + {{ "row" if keys else "column * 4u + " ~ e ~ "u" }}]) == at_block + 1u {
                            score.{{ "xyzw"[e] }} = bitcast<f32>(0x7fc00000u | p.stats_offset);
                        }
{% endfor %}
{% endif %}
                        score = vec4<f32>({% for c in range(4) %}masked(score.{{ "xyzw"[c] }}, at_m, j + {{ c }}u, seen){{ ", " if c < 3 }}{% endfor %});
                        hidden = score <= vec4<f32>(HIDDEN);
                        dw = select(dw, vec4<f32>(delta), hidden);
                    }
{% if mask %}
                    // where a mask lets all that is seen be far below 0, the log-sum-exp is too inexact for weights to be below 1
                    var weight = exp2((score - lse) * LOG2_E);
                    weight = select(select(weight, vec4<f32>(1.0), weight > vec4<f32>(1.0)), vec4<f32>(0.0), hidden);
{% else %}
                    let weight = select(exp2((score - lse) * LOG2_E), vec4<f32>(0.0), hidden);
{% endif %}
{% if dropout %}
                    let z = kept(weights_of(b, min(queries_from + row, p.sq - 1u)) + keys_from + column * 4u, stream);
                    dw *= z;
{% endif %}
{% if s.scaled %}
                    // whatever the others hold, a weight of 0 has no gradient
                    let nothing = weight == vec4<f32>(0.0);
{% else %}
                    let nothing = hidden;
{% endif %}
                    let of_score = weight * (dw - delta);
{% if keys %}
{% if s.scaled %}
                    for_dv[e] = select(weight{{ " * z" if dropout }} * query.y, vec4<f32>(0.0), nothing);
                    for_dk[e] = select(of_score * query.x, vec4<f32>(0.0), nothing);
{% else %}
                    for_dv[e] = {% if dropout %}select(weight * 4096.0, vec4<f32>(0.0), z == vec4<f32>(0.0)){% else %}weight * 4096.0{% endif %};
                    for_dk[e] = select(of_score, vec4<f32>(0.0), nothing);
{% endif %}
{% else %}
                    for_dq[e] = select(of_score{{ " * key_factor" if s.scaled }}, vec4<f32>(0.0), nothing);
{% endif %}
{% for name in levels %}
                    largest_{{ name }} = max(largest_{{ name }}, finite(for_{{ name }}[e]));
{% endfor %}
                }
{% endfor %}
            }
