package webhook

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// attempts to write the Secret before the next check; each failure means that
// another replica wrote.
const attempts = 5

// keeper keeps Secret and webhook configuration as they should be.
type keeper struct {
	plan
	client          kubernetes.Interface
	namespace, name string // of the Secret
	webhook         string
	log             *slog.Logger
}

// kept is the state after a check.
type kept struct {
	serving tls.Certificate
	ca      time.Time // end of the CA's life
	bundle  []byte
}

// check makes all well and returns what is then in use. An error of the webhook
// configuration alone comes with a state that can be served.
func (k *keeper) check(ctx context.Context, now time.Time) (kept, error) {
	config, configErr := k.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, k.webhook, metav1.GetOptions{})
	if configErr != nil {
		config, configErr = nil, fmt.Errorf("read webhook configuration %s: %w", k.webhook, configErr)
	}
	data, err := k.secret(ctx, now, config)
	if err != nil {
		return kept{}, errors.Join(err, configErr)
	}
	out, err := k.read(data)
	if err == nil && config != nil {
		configErr = k.trust(ctx, now, config, out.bundle)
	}
	return out, errors.Join(err, configErr)
}

func (k *keeper) read(data map[string][]byte) (kept, error) {
	serving, err := readPair(data[tlsCert], data[tlsKey])
	if err != nil {
		return kept{}, err
	}
	ca, err := readPair(data[caCert], data[caKey])
	if err != nil {
		return kept{}, err
	}
	return kept{serving: serving, ca: ca.Leaf.NotAfter, bundle: data[caBundle]}, nil
}

// secret returns the Secret's data, renewed where it was due.
func (k *keeper) secret(ctx context.Context, now time.Time, config *admission.MutatingWebhookConfiguration) (map[string][]byte, error) {
	secrets := k.client.CoreV1().Secrets(k.namespace)
	var last error
	for range attempts {
		s, err := secrets.Get(ctx, k.name, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		switch {
		case missing:
			s = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: k.name}, Type: corev1.SecretTypeOpaque}
		case err != nil:
			return nil, fmt.Errorf("read certificate Secret %s/%s: %w", k.namespace, k.name, err)
		}
		data, err := k.renew(now, s.Data, trusts(config, s.Data[caCert]))
		if err != nil {
			return nil, err
		}
		if maps.EqualFunc(data, s.Data, func(a, b []byte) bool { return string(a) == string(b) }) && !missing {
			return data, nil
		}
		s = s.DeepCopy()
		s.Data = data
		if missing {
			_, err = secrets.Create(ctx, s, metav1.CreateOptions{})
		} else {
			_, err = secrets.Update(ctx, s, metav1.UpdateOptions{}) // with the resource version that was read
		}
		switch {
		case err == nil:
			k.log.Info("certificates renewed", slog.String(keySecret, k.namespace+"/"+k.name))
			return data, nil
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
			last = err // another replica was faster: take its certificates
		default:
			return nil, fmt.Errorf("write certificate Secret %s/%s: %w", k.namespace, k.name, err)
		}
	}
	return nil, fmt.Errorf("write certificate Secret %s/%s: %w", k.namespace, k.name, last)
}

// trusts says whether every webhook of the configuration has the CA.
func trusts(config *admission.MutatingWebhookConfiguration, ca []byte) bool {
	if config == nil || len(config.Webhooks) == 0 {
		return false
	}
	for i := range config.Webhooks {
		if !holds(config.Webhooks[i].ClientConfig.CABundle, ca) {
			return false
		}
	}
	return true
}

// trust writes the bundle into the configuration's webhooks. CAs of ours that it
// has already stay while they live: a replica may still serve a certificate of
// theirs, also when the Secret was deleted.
func (k *keeper) trust(ctx context.Context, now time.Time, config *admission.MutatingWebhookConfiguration, bundle []byte) error {
	type client struct {
		CABundle []byte `json:"caBundle"`
	}
	type hook struct {
		Name   string `json:"name"`
		Client client `json:"clientConfig"`
	}
	var change []hook
	for i := range config.Webhooks {
		h := &config.Webhooks[i]
		want := joinBundle(now, bundle, h.ClientConfig.CABundle)
		if string(want) != string(h.ClientConfig.CABundle) {
			change = append(change, hook{h.Name, client{want}})
		}
	}
	if len(change) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"webhooks": change})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	// Webhooks are merged by name; nothing else of them is touched.
	_, err = k.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(ctx, k.webhook, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("write CA into webhook configuration %s: %w", k.webhook, err)
	}
	k.log.Info("webhook configuration trusts the certificates", slog.String(keyWebhook, k.webhook))
	return nil
}
