package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// right is something that a user may do: "verb group/resource/name in namespace".
type right = string

// rights asks, as a user, for each verb of each resource of the cluster, in each of the namespaces and in all, without a name
// and with each of the names.
func (p *plane) rights(t *testing.T, user *client, namespaces, names []string) map[right]bool {
	t.Helper()
	out := map[right]bool{}
	asked := 0
	for _, r := range p.resources(t) {
		group, rest, _ := strings.Cut(r, "/")
		resource, sub, _ := strings.Cut(rest, "/")
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "bind", "escalate", "impersonate", "approve", "sign", "use"} {
			for _, namespace := range namespaces {
				for _, name := range names {
					review := authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: sub, Name: name,
					}}}
					if err := user.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, &review); err != nil {
						t.Fatal(err)
					}
					asked++
					if review.Status.Allowed {
						where := namespace
						if where == "" {
							where = "all namespaces"
						}
						what := strings.Trim(r+"/"+name, "/")
						out[fmt.Sprintf("%s %s in %s", verb, what, where)] = true
					}
				}
			}
		}
	}
	t.Logf("%d questions, %d allowed", asked, len(out))
	return out
}

// resources are all of the cluster, "group/resource" or "group/resource/subresource".
func (p *plane) resources(t *testing.T) []string {
	t.Helper()
	var out []string
	add := func(group, path string) {
		var list metav1.APIResourceList
		if err := p.get(path, &list); err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			out = append(out, group+"/"+r.Name)
		}
	}
	add("", "/api/v1")
	var groups metav1.APIGroupList
	if err := p.get("/apis", &groups); err != nil {
		t.Fatal(err)
	}
	for _, g := range groups.Groups {
		add(g.Name, "/apis/"+g.PreferredVersion.GroupVersion)
	}
	return out
}

// leastRights compares what the ServiceAccounts of the chart may do with what they need, over all that the cluster has.
func (p *plane) leastRights(t *testing.T) {
	namespaces := []string{"", release, "models", "kube-system"}
	names := []string{"", release + "-injector", release + "-injector-cert", "other"}
	// What every user may do, such as asking what it may do, is not the chart's.
	everybody := p.rights(t, p.serviceAccount(t, "kube-system", "default"), namespaces, names)
	for _, c := range []struct {
		account, namespace string
		want               []right
	}{
		{release + "-gateway", release, watches("models", "/pods", "discovery.k8s.io/endpointslices", "inference.networking.k8s.io/inferencepools", "llm-d.ai/inferenceobjectives", "/services")},
		{release + "-injector", release, []right{
			"get /secrets/grapevine-injector-cert in " + release, "update /secrets/grapevine-injector-cert in " + release, "patch /secrets/grapevine-injector-cert in " + release,
		}},
		{"default", "models", nil},
	} {
		t.Run(c.account, func(t *testing.T) {
			got := p.rights(t, p.serviceAccount(t, c.namespace, c.account), namespaces, names)
			maps.DeleteFunc(got, func(r right, _ bool) bool { return everybody[r] })
			for _, r := range slices.Sorted(maps.Keys(got)) {
				t.Log("may ", r)
			}
			for _, r := range c.want {
				if !got[r] {
					t.Errorf("may not %s", r)
				}
				delete(got, r)
			}
			for _, r := range slices.Sorted(maps.Keys(got)) {
				t.Errorf("may %s", r)
			}
		})
	}
}

// watches are get, list and watch of resources in one namespace.
func watches(namespace string, resources ...string) []right {
	var out []right
	for _, r := range resources {
		for _, verb := range []string{"get", "list", "watch"} {
			for _, name := range []string{"", "/grapevine-injector", "/grapevine-injector-cert", "/other"} {
				out = append(out, fmt.Sprintf("%s %s%s in %s", verb, r, name, namespace))
			}
		}
	}
	return out
}
