package webhook

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const (
	testNamespace = "ns"
	testSecret    = "cert"
	testWebhook   = "hook"
)

func configuration() *admission.MutatingWebhookConfiguration {
	path := "/inject/agent"
	hook := func(name string) admission.MutatingWebhook {
		return admission.MutatingWebhook{Name: name, ClientConfig: admission.WebhookClientConfig{
			Service: &admission.ServiceReference{Namespace: testNamespace, Name: "injector", Path: &path},
		}}
	}
	return &admission.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: testWebhook}, Webhooks: []admission.MutatingWebhook{hook("a.example"), hook("b.example")}}
}

func newKeeper(client *fake.Clientset) *keeper {
	return &keeper{plan: testPlan, client: client, namespace: testNamespace, name: testSecret, webhook: testWebhook, log: slog.New(slog.DiscardHandler)}
}

func (k *keeper) bundles(t *testing.T) (out [][]byte) {
	t.Helper()
	c, err := k.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), testWebhook, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range c.Webhooks {
		if h.ClientConfig.Service == nil || *h.ClientConfig.Service.Path != "/inject/agent" {
			t.Errorf("webhook %s lost its service", h.Name)
		}
		out = append(out, h.ClientConfig.CABundle)
	}
	return out
}

func (k *keeper) data(t *testing.T) map[string][]byte {
	t.Helper()
	s, err := k.client.CoreV1().Secrets(testNamespace).Get(t.Context(), testSecret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s.Data
}

// writes counts the requests that change something.
func writes(client *fake.Clientset) (n int) {
	for _, a := range client.Actions() {
		if a.GetVerb() != "get" {
			n++
		}
	}
	return n
}

// A first start, with the Secret empty as the chart makes it, or not there.
func TestFirstStart(t *testing.T) {
	empty := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: testSecret, Labels: map[string]string{"app": "x"}}}
	for name, objects := range map[string][]runtime.Object{"empty": {configuration(), empty}, "missing": {configuration()}} {
		t.Run(name, func(t *testing.T) {
			k := newKeeper(fake.NewClientset(objects...))
			now := time.Now()
			got, err := k.check(t.Context(), now)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range k.bundles(t) {
				if !accepts(t, now, b, k.data(t)) || !bytes.Equal(b, got.bundle) {
					t.Error("the webhook does not trust the certificate")
				}
			}
			n := writes(k.client.(*fake.Clientset))
			if _, err := k.check(t.Context(), now.Add(time.Minute)); err != nil || writes(k.client.(*fake.Clientset)) != n {
				t.Errorf("a second check writes again: %v", err)
			}
		})
	}
}

// Two replicas start at once: the slower one takes the faster one's certificates.
func TestReplicasAgree(t *testing.T) {
	for _, what := range []string{"create", "update"} {
		t.Run(what, func(t *testing.T) {
			objects := []runtime.Object{configuration()}
			if what == "update" {
				objects = append(objects, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: testSecret}})
			}
			client := fake.NewClientset(objects...)
			k := newKeeper(client)
			other := newKeeper(fake.NewClientset(configuration()))
			if _, err := other.check(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
			theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: testSecret}, Data: other.data(t)}
			raced := false
			client.PrependReactor(what, "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
				if raced {
					return false, nil, nil
				}
				raced = true // the other replica was there first
				secrets := corev1.SchemeGroupVersion.WithResource("secrets")
				if what == "create" {
					return true, nil, errors.Join(client.Tracker().Create(secrets, theirs, testNamespace), apierrors.NewAlreadyExists(secrets.GroupResource(), testSecret))
				}
				return true, nil, errors.Join(client.Tracker().Update(secrets, theirs, testNamespace), apierrors.NewConflict(secrets.GroupResource(), testSecret, nil))
			})
			got, err := k.check(t.Context(), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if data := k.data(t); !raced || !bytes.Equal(got.bundle, theirs.Data[caBundle]) || !bytes.Equal(got.bundle, data[caBundle]) {
				t.Error("the replicas have different CAs")
			}
		})
	}
}

// TestRotationInUse: the CA is changed in three steps, at none of which a client
// refuses a server.
func TestRotationInUse(t *testing.T) {
	k := newKeeper(fake.NewClientset(configuration()))
	start := time.Now()
	first, err := k.check(t.Context(), start)
	if err != nil {
		t.Fatal(err)
	}
	// Let it live until the CA is due.
	now := start
	for now = start; now.Sub(start) < 300*24*time.Hour; now = now.Add(24 * time.Hour) {
		before := k.data(t)
		got, err := k.check(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		after := k.data(t)
		for _, b := range k.bundles(t) {
			if !accepts(t, now, b, before) || !accepts(t, now, b, after) {
				t.Fatalf("%v: the API server refuses the injector", now.Sub(start))
			}
		}
		if len(readBundle(got.bundle)) == 2 && !bytes.Equal(before[tlsCert], after[tlsCert]) {
			break // the new CA has signed
		}
	}
	if now.Sub(start) >= 300*24*time.Hour {
		t.Fatal("the CA was not changed")
	}
	serving, _ := readPair(k.data(t)[tlsCert], k.data(t)[tlsKey])
	old := readBundle(first.bundle)[0]
	if serving.Leaf.CheckSignatureFrom(old) == nil {
		t.Error("the old CA has signed")
	}
	// The old CA goes when it has expired.
	for ; !now.After(old.NotAfter.Add(48 * time.Hour)); now = now.Add(24 * time.Hour) {
		if _, err := k.check(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	if b := k.bundles(t)[0]; holds(b, first.bundle) || len(readBundle(b)) == 0 {
		t.Error("the expired CA is still trusted")
	}
}

// Somebody deletes the Secret while replicas serve: what they serve stays trusted.
func TestSecretDeleted(t *testing.T) {
	k := newKeeper(fake.NewClientset(configuration()))
	now := time.Now()
	if _, err := k.check(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	served := k.data(t)
	if err := k.client.CoreV1().Secrets(testNamespace).Delete(t.Context(), testSecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.check(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	for _, b := range k.bundles(t) {
		if !accepts(t, now, b, served) || !accepts(t, now, b, k.data(t)) {
			t.Error("a certificate in use is not trusted")
		}
	}
}

// Without the configuration, or the right to write it, there is a certificate all
// the same, and an error that says what is wrong.
func TestConfigurationOutOfReach(t *testing.T) {
	t.Run("missing", func(t *testing.T) {
		got, err := newKeeper(fake.NewClientset()).check(t.Context(), time.Now())
		if got.serving.Leaf == nil || err == nil || !strings.Contains(err.Error(), testWebhook) {
			t.Errorf("got %v, %v", got.serving.Leaf, err)
		}
	})
	t.Run("forbidden", func(t *testing.T) {
		client := fake.NewClientset(configuration())
		client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "mutatingwebhookconfigurations"}, testWebhook, nil)
		})
		got, err := newKeeper(client).check(t.Context(), time.Now())
		if got.serving.Leaf == nil || !apierrors.IsForbidden(err) {
			t.Errorf("got %v, %v", got.serving.Leaf, err)
		}
	})
	t.Run("secret forbidden", func(t *testing.T) {
		client := fake.NewClientset(configuration())
		client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, testSecret, nil)
		})
		if got, err := newKeeper(client).check(t.Context(), time.Now()); got.serving.Leaf != nil || !apierrors.IsForbidden(err) {
			t.Errorf("got %v", err)
		}
	})
}
