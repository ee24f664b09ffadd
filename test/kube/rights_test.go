package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// right is something that a user may do: "verb resource in namespace"; a resource is "group/name" and may have a
// "/subresource" and a " object".
type right = string

// rights asks, as a user, for each verb of each resource of the cluster, in each of the namespaces and in all of them.
// Objects of the kinds that have secrets or that steer the cluster are also asked for by name.
func (p *plane) rights(t *testing.T, user *client, namespaces, names []string) map[right]bool {
	t.Helper()
	type question struct {
		authorizationv1.ResourceAttributes
		right
	}
	var questions []question
	for _, r := range p.resources(t) {
		in := namespaces
		if !r.Namespaced {
			in = []string{""}
		}
		objects := []string{""}
		if slices.Contains([]string{"secrets", "configmaps", "pods", "mutatingwebhookconfigurations"}, r.Name) {
			objects = append(objects, names...)
		}
		resource, sub, _ := strings.Cut(r.Name, "/")
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate", "*"} {
			for _, namespace := range in {
				for _, object := range objects {
					where := "all namespaces"
					if namespace != "" {
						where = namespace
					}
					questions = append(questions, question{
						authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: r.Group, Resource: resource, Subresource: sub, Name: object},
						fmt.Sprintf("%s %s in %s", verb, strings.TrimSpace(strings.TrimPrefix(r.Group+"/"+r.Name, "/")+" "+object), where),
					})
				}
			}
		}
	}
	var mu sync.Mutex
	out := map[right]bool{}
	p.inParallel(t, len(questions), func(i int) error {
		q := questions[i]
		review := authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &q.ResourceAttributes}}
		if err := user.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, &review); err != nil {
			return err
		}
		if review.Status.Allowed {
			mu.Lock()
			defer mu.Unlock()
			out[q.right] = true
		}
		return nil
	})
	t.Logf("%d questions, %d allowed", len(questions), len(out))
	return out
}

// resources are all of the cluster, subresources included.
func (p *plane) resources(t *testing.T) []metav1.APIResource {
	t.Helper()
	out := []metav1.APIResource{{Group: "*", Name: "*", Namespaced: true}}
	add := func(group, path string) {
		var list metav1.APIResourceList
		if err := p.get(path, &list); err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			r.Group = group // empty in the list where it is the list's own
			out = append(out, r)
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
	names := []string{release + "-injector", release + "-injector-cert", "other"}
	// What every user may do, such as asking what it may do, is not the chart's.
	everybody := p.rights(t, p.serviceAccount(t, "kube-system", "default"), namespaces, names)
	gateway := watches("models", "pods", "pods grapevine-injector", "pods grapevine-injector-cert", "pods other",
		"discovery.k8s.io/endpointslices", "inference.networking.k8s.io/inferencepools", "llm-d.ai/inferenceobjectives")
	for _, c := range []struct {
		account, namespace string
		want               []right
	}{
		{release + "-gateway", release, gateway},
		{release + "-injector", release, []right{
			"get secrets grapevine-injector-cert in " + release, "update secrets grapevine-injector-cert in " + release,
			"get admissionregistration.k8s.io/mutatingwebhookconfigurations grapevine-injector in all namespaces",
			"patch admissionregistration.k8s.io/mutatingwebhookconfigurations grapevine-injector in all namespaces",
		}},
		{"default", "models", nil}, // of model pods, and so of agents
	} {
		t.Run(c.account, func(t *testing.T) {
			got := p.rights(t, p.serviceAccount(t, c.namespace, c.account), namespaces, names)
			maps.DeleteFunc(got, func(r right, _ bool) bool { return everybody[r] })
			for _, r := range slices.Sorted(maps.Keys(got)) {
				t.Log("may", r)
			}
			for _, r := range c.want {
				if !got[r] {
					t.Errorf("may not %s", r)
				}
				delete(got, r)
			}
			for _, r := range slices.Sorted(maps.Keys(got)) {
				t.Errorf("may %s, and needs it not", r)
			}
		})
	}
}

// watches are get, list and watch of resources in one namespace.
func watches(namespace string, resources ...string) []right {
	var out []right
	for _, r := range resources {
		for _, verb := range []string{"get", "list", "watch"} {
			out = append(out, fmt.Sprintf("%s %s in %s", verb, r, namespace))
		}
	}
	return out
}
