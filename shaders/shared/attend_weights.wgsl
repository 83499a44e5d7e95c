{% from "shared/units.wgsl" import read, put_halves %}
{% from "shared/attend_rows.wgsl" import each_row, mine, across, some, scale_rows, four_of %}
{% from "shared/mask.wgsl" import mask_row %}
{#
A part of main in attention_units.wgsl, for keys t to t + step of the block. In: their scores as the units made them, in
`scores`; out: their weights, relative to the level of each query, in `weights`, and the sums of weights. Where a level
rises, sums and results are scaled down to it.
#}
{# the lane's scores number i of its query #}
{% macro score(i) %}{{ read("scores", "f32", "at_scores + row * " ~ at_score ~ "u + " ~ mine(i, rows, u), u) }}{% endmacro %}
{# the largest of them #}
{% macro largest() %}{% for i in range(1, fours) %}max({% endfor %}x[r * {{ fours }}u]{% for i in range(1, fours) %}, x[r * {{ fours }}u + {{ i }}u]){% endfor %}{% endmacro %}
{# what a score of HIDDEN is by then #}
{% set hidden = "HIDDEN * LOG2_E" if mask else "HIDDEN" %}
            // x: scores as logarithms to base 2, scaled and masked
{{ each_row(rows, u) }}
{% for i in range(fours) %}
                x[r * {{ fours }}u + {{ i }}u] = {{ score(i) }} * {{ "(usual_factor * query_factor[r])" if s.scaled else "query_factor[r]" }};
{% endfor %}
                if {{ "true" if mask else "strange || j + " ~ step ~ " > ends[r]" }} {
                    let i = min(own + row, p.sq - 1u);
                    let at_m = {{ mask_row("i", mask) }};
{% for i in range(fours) %}
                    {
                        let four = t / 4u + {{ mine(i, rows, u) }};
                        let key = u32(at_block) + four * 4u;
                        var y = x[r * {{ fours }}u + {{ i }}u];
{% if s.scaled %}
                        if strange {
                            // one after the other, as the product of both may not be a number
                            y = {{ score(i) }} * {{ four_of("key_factors", "four") }} * query_factor[r];
                        }
{% else %}
{% for e in range(4) %}
                        if strange && atomicLoad(&broken[four * 4u + {{ e }}u]) == u32(at_block) + 1u {
                            y.{{ "xyzw"[e] }} = bitcast<f32>(0x7fc00000u | p.zero);
                        }
{% endfor %}
{% endif %}
                        y = vec4<f32>({% for e in range(4) %}{{ "LOG2_E * " if mask }}masked(y.{{ "xyzw"[e] }}{{ " / LOG2_E" if mask }}, at_m, key + {{ e }}u, ends[r]){{ ", " if e < 3 }}{% endfor %});
                        x[r * {{ fours }}u + {{ i }}u] = select(y, vec4<f32>(-infinity), y <= vec4<f32>({{ hidden }}));
                    }
{% endfor %}
                }
            }
{% if s.scaled %}
            // with the scale of each row: the sum goes by a maximum of its own, and x takes what undoes the value's scale.
            // A loop, since naga takes a condition for one that differs between lanes
            for (var go = strange; go; go = false) {
{{ each_row(rows, u) }}
                    var m = largest({{ largest() }});
{{ across("m", "max", rows, u) }}
                    let new_top = max(top[r], m);
                    var weights = vec4<f32>(0.0);
{% for i in range(fours) %}
                    {
                        let y = x[r * {{ fours }}u + {{ i }}u];
                        weights += exp2(y - vec4<f32>(new_top));
                        x[r * {{ fours }}u + {{ i }}u] = select(y + {{ four_of("value_shifts", "t / 4u + " ~ mine(i, rows, u)) }}, y, y <= vec4<f32>({{ hidden }}));
                    }
{% endfor %}
                    sum[r] = fma(sum[r], exp2(top[r] - new_top), (weights.x + weights.y) + (weights.z + weights.w));
                    top[r] = new_top;
                }
            }
{% endif %}
            // levels
            var above = false;
            var most: array<f32, {{ own }}>;
{{ each_row(rows, u) }}
                var m = largest({{ largest() }});
{{ across("m", "max", rows, u) }}
                most[r] = m;
                above = above || m > level[r] + (ROOM + 8.0);
            }
            for (var rise = {{ some("above", u) }}; rise; rise = false) {
                var begun = false;
{{ each_row(rows, u) }}
                    let new_level = max(level[r], most[r] - ROOM);
                    most[r] = exp2(level[r] - new_level);
                    begun = begun || level[r] > FLOOR;
                    level[r] = new_level;
                    sum[r] *= {{ "select(most[r], 1.0, strange)" if s.scaled else "most[r]" }};
                }
                for (var scale = {{ some("begun", u) }}; scale; scale = false) {
{{ scale_rows("out", rows, "most[r]", at_score, s, u) }}
                }
            }
            // weights
{{ each_row(rows, u) }}
                var weights = vec4<f32>(0.0);
{% for i in range(fours) %}
                {
                    var w = exp2(x[r * {{ fours }}u + {{ i }}u] - vec4<f32>(level[r]));
                    weights += w;
{% if dropout %}
                    let z = kept(weights_of(b, min(own + row, p.sq - 1u)) + u32(j) + ({{ mine(i, rows, u) }}) * 4u, stream);
                    w = select(w, vec4<f32>(0.0), z == vec4<f32>(0.0));
{% endif %}
{{ put_halves("weights", "at_weights + row * " ~ at_weight ~ "u + " ~ mine(i, rows, u), "w", u) }}
                }
{% endfor %}
                sum[r] += {{ "select((weights.x + weights.y) + (weights.z + weights.w), 0.0, strange)" if s.scaled else "(weights.x + weights.y) + (weights.z + weights.w)" }};
            }
