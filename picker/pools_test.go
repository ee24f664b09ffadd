package picker

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// TestPools: one gateway, several pools and models. Endpoints of which nobody tells the models get what others of their
// pool serve, and never what is known to be another pool's.
func TestPools(t *testing.T) {
	const bareLlama, bareQwen, bareNew, static = "10.1.0.1:8000", "10.1.0.2:8000", "10.1.0.3:8000", "10.1.0.4:8000"
	f := newFleet(t, 0, func(c *Config) { c.Discover = false })
	for i, models := range [][]wire.Model{{{Name: "llama"}, {Name: "sql", Parent: "llama"}}, {{Name: "qwen"}}} {
		a := f.newAgent(i)
		a.info.Models = models
		f.agents = append(f.agents, a)
		f.sendInfo(a)
	}
	f.tick()
	may := func(model string) []string {
		t.Helper()
		tbl := f.table.Load()
		serves, err := tbl.serving(model)
		if err != nil {
			t.Fatalf("model %q: %v", model, err)
		}
		var out []string
		for i, e := range tbl.endpoints {
			if serves == nil || i < len(serves) && serves[i] {
				out = append(out, e.public.ID)
			}
		}
		for range 3 * len(out) { // none is ended: they spread
			if d := f.pick(Request{ID: "r", Model: model, PromptTokens: 10}); serves != nil && !slices.Contains(out, d.Endpoint.ID) {
				t.Errorf("model %q went to %s, want one of %v", model, d.Endpoint.ID, out)
			}
		}
		return out
	}
	check := func(want map[string][]string) {
		t.Helper()
		f.Status() // takes over what has come
		for model, endpoints := range want {
			if d := cmp.Diff(endpoints, may(model)); d != "" {
				t.Errorf("model %q: (-want +got):\n%s", model, d)
			}
		}
	}
	set := func(pools map[string][]string) {
		t.Helper()
		if err := f.SetPools(pools); err != nil {
			t.Fatal(err)
		}
	}

	set(map[string][]string{"models/llama": {id(0), bareLlama}, "models/qwen": {bareQwen, id(1)}, "models/new": {bareNew}, "": {static}})
	check(map[string][]string{
		"llama": {id(0), bareLlama, static},
		"sql":   {id(0), static}, // whether the other of its pool has the adapter is not known
		"qwen":  {id(1), bareQwen, static},
		"other": {bareNew, static},
		"":      {id(0), id(1), bareLlama, bareQwen, bareNew, static},
	})

	// Its own word counts more than what its pool serves.
	f.SetModels(map[string][]string{bareLlama: {"llama-8b"}})
	check(map[string][]string{"llama": {id(0), static}, "llama-8b": {bareLlama, static}, "qwen": {id(1), bareQwen, static}, "other": {bareNew, static}})
	f.SetModels(map[string][]string{bareLlama: nil})

	// An endpoint may be in two pools, and one without gossip alone is served whatever is asked for.
	set(map[string][]string{"a/llama": {id(0), bareNew}, "b/qwen": {id(1), bareNew}})
	check(map[string][]string{"llama": {id(0), bareNew}, "qwen": {id(1), bareNew}})
	var unknown ErrUnknownModel
	if _, err := f.table.Load().serving("other"); !errors.As(err, &unknown) {
		t.Errorf("error %v, want ErrUnknownModel", err)
	}
	set(map[string][]string{"a/new": {bareNew, bareQwen}})
	check(map[string][]string{"anything": {bareQwen, bareNew}})

	if err := f.SetPools(map[string][]string{"a": {"ftp://x"}}); err == nil {
		t.Error("a faulty endpoint was taken")
	}
	set(nil)
	if n := len(f.Status().Endpoints); n != 0 {
		t.Errorf("%d endpoints, want none", n)
	}
}
