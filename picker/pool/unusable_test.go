package pool

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/picker"
)

// What no endpoint can be costs nobody else the place: the picker refuses a list with one such address as a whole.
func TestUnusableAddresses(t *testing.T) {
	member := func(addresses ...string) (out []sliceMember) {
		for _, a := range addresses {
			out = append(out, sliceMember{address: a, state: ready})
		}
		return out
	}
	tests := []struct {
		name string
		set  set
		want []string
		note string
	}{
		{"a slice with a negative port", sliceSet("http", map[string]slice{
			"bad":  {family: familyIPv4, ports: []slicePort{{"http", -1}}, members: member("10.0.0.1")},
			"good": {family: familyIPv4, ports: []slicePort{{"http", 8000}}, members: member("10.0.0.2")},
		}), []string{"10.0.0.2:8000"}, `"10.0.0.1" with port -1`},
		{"a slice with a port too high", sliceSet("", map[string]slice{
			"bad": {family: familyIPv4, ports: []slicePort{{"", 70000}}, members: member("10.0.0.1")},
		}), []string{}, "port 70000"},
		{"addresses that are none", sliceSet("", map[string]slice{
			"all": {family: familyIPv4, ports: []slicePort{{"", 80}}, members: member("", "10.0.0.1/x", "fe80::1%eth0", "user@10.0.0.3", "10.0.0.2")},
		}), []string{"10.0.0.2:80"}, "left out"},
		{"a pool with ports that are none", podSet(poolSpec{ports: []int32{0, -8, 65536, 8000}}, map[string]pod{"a": {"10.0.0.1", ready}}),
			[]string{"10.0.0.1:8000"}, "left out"},
	}
	p, err := picker.New(picker.Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.set.endpoints); diff != "" {
				t.Error(diff)
			}
			if !strings.Contains(tt.set.note, tt.note) {
				t.Errorf("note %q, want one with %q", tt.set.note, tt.note)
			}
			if err := p.SetPools(map[string][]string{"models/x": tt.set.endpoints}); err != nil {
				t.Error(err)
			}
		})
	}
}
