package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	core "k8s.io/api/core/v1"
)

// TestChartInferencePools: each asks at a port of its own, which is bound to it.
func TestChartInferencePools(t *testing.T) {
	o := render(t, installs()["extproc"])
	listens := fmt.Sprint(gatewayConfig(t, o)["ext-proc"].(map[string]any)["listen"])
	service := get[core.Service](t, o, "grapevine", "grapevine-gateway")
	for _, p := range each[InferencePool](o) {
		ref := p.Spec.EndpointPickerRef
		if ref.Name != service.Name || !slices.ContainsFunc(service.Spec.Ports, func(s core.ServicePort) bool { return s.Port == ref.Port.Number }) {
			t.Errorf("pool %s asks %s:%d, which is not there", p.Metadata.Name, ref.Name, ref.Port.Number)
		}
		if bound := fmt.Sprintf("grapevine/%s=:%d", p.Metadata.Name, ref.Port.Number); !strings.Contains(listens, bound) {
			t.Errorf("listeners %s without %s", listens, bound)
		}
	}
	if routes := each[HTTPRoute](o); len(routes) != 1 || routes[0].Spec.Rules[0].BackendRefs[0].Name != "llama" {
		t.Errorf("routes: %+v", routes)
	}
}

// TestChartRoutes: by the rules of the Gateway API a route finds a Service of its own namespace by name alone, and one of another
// namespace only where a ReferenceGrant beside that Service lets it.
func TestChartRoutes(t *testing.T) {
	o := render(t, registry+`
httpRoutes:
- {name: here, parentRefs: [{name: gw}], grapevinePercent: 0, baseline: {name: a, port: 80}}
- {name: there, namespace: models, parentRefs: [{name: gw, namespace: infra}], grapevinePercent: 5, baseline: {name: b, port: 80}}
- {name: again, namespace: models, parentRefs: [{name: gw}], grapevinePercent: 100, baseline: {name: c, port: 80}}
- {name: there, namespace: more, parentRefs: [{name: gw}], grapevinePercent: 5, baseline: {name: d, port: 80}}
`)
	grant := get[ReferenceGrant](t, o, "grapevine", "grapevine-gateway")
	if d := cmp.Diff([]GrantRef{{Kind: "Service", Name: "grapevine-gateway"}}, grant.Spec.To); d != "" {
		t.Errorf("granted (-want +got):\n%s", d)
	}
	const group = "gateway.networking.k8s.io"
	if d := cmp.Diff([]GrantRef{{Group: group, Kind: "HTTPRoute", Namespace: "models"}, {Group: group, Kind: "HTTPRoute", Namespace: "more"}}, grant.Spec.From); d != "" {
		t.Errorf("granted to (-want +got):\n%s", d)
	}
	for name, want := range map[string]struct {
		baseline string
		weight   int32
	}{"grapevine/here": {"a", 0}, "models/there": {"b", 5}, "models/again": {"c", 100}, "more/there": {"d", 5}} {
		ns, n, _ := strings.Cut(name, "/")
		other := 100 - want.weight
		wants := []BackendRef{{Name: "grapevine-gateway", Namespace: "grapevine", Port: 8080, Weight: &want.weight}, {Name: want.baseline, Port: 80, Weight: &other}}
		if d := cmp.Diff(wants, get[HTTPRoute](t, o, ns, n).Spec.Rules[0].BackendRefs); d != "" {
			t.Errorf("%s: backends (-want +got):\n%s", name, d)
		}
	}
	if r := get[HTTPRoute](t, o, "models", "there"); r.Spec.ParentRefs[0].Namespace != "infra" {
		t.Errorf("parents %+v", r.Spec.ParentRefs)
	}
	own := render(t, registry+"httpRoutes: [{name: a, namespace: grapevine, parentRefs: [{name: gw}], grapevinePercent: 5, baseline: {name: a, port: 80}}]\n")
	if grants := each[ReferenceGrant](own); len(grants) > 0 {
		t.Errorf("a route of the release's namespace has a grant: %+v", grants[0])
	}
}
