package webhook

import (
	"bytes"
	"crypto/x509"
	"maps"
	"testing"
	"time"
)

var testPlan = plan{names: []string{"injector.ns.svc", "127.0.0.1"}, caLife: 365 * 24 * time.Hour, certLife: 30 * 24 * time.Hour}

// accepts says whether a client that trusts bundle takes the serving certificate
// in data.
func accepts(t *testing.T, now time.Time, bundle []byte, data map[string][]byte) bool {
	t.Helper()
	pair, err := readPair(data[tlsCert], data[tlsKey])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: "injector.ns.svc"})
	return err == nil
}

func renew(t *testing.T, now time.Time, data map[string][]byte, trusted bool) map[string][]byte {
	t.Helper()
	next, err := testPlan.renew(now, data, trusted)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// TestRotations walks through rotation after rotation, with lives as they are and
// with very short ones. At every check, each client
// accepts each server: clients with the bundle of this or the check before, servers
// with the certificate of this or the check before.
func TestRotations(t *testing.T) {
	t.Run("two years", func(t *testing.T) { rotations(t, testPlan, 2*365*24*time.Hour, 6*time.Hour) })
	t.Run("a quarter of an hour", func(t *testing.T) {
		p := testPlan
		p.caLife, p.certLife = 45*time.Second, 30*time.Second
		rotations(t, p, 15*time.Minute, time.Second)
	})
}

func rotations(t *testing.T, p plan, during, step time.Duration) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	renew := func(data map[string][]byte, trusted bool) map[string][]byte {
		next, err := p.renew(now, data, trusted)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	data := renew(nil, false)
	authorities, servings := 1, 1
	for end := now.Add(during); now.Before(end); now = now.Add(step) {
		next := renew(data, true)
		if !bytes.Equal(next[caCert], data[caCert]) {
			authorities++
			if !bytes.Equal(next[tlsCert], data[tlsCert]) {
				t.Fatalf("%v: the new CA signs before it is trusted", now)
			}
		} else if !bytes.Equal(next[tlsCert], data[tlsCert]) {
			servings++
		}
		for _, bundle := range [][]byte{data[caBundle], next[caBundle]} {
			for _, server := range []map[string][]byte{data, next} {
				if !accepts(t, now, bundle, server) {
					t.Fatalf("%v: a client refuses a server", now)
				}
			}
		}
		if n := len(readBundle(next[caBundle])); n > 2 {
			t.Fatalf("%v: %d CAs in the bundle", now, n)
		}
		data = next
	}
	if most := int(during / (p.caLife / 2)); authorities < 3 || authorities > most || servings < authorities || servings > 4*int(during/p.certLife) {
		t.Errorf("%d CAs and %d serving certificates in %v", authorities, servings, during)
	}
}

func TestRenew(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	good := renew(t, now, nil, false)
	other := renew(t, now, nil, false)
	with := func(key string, value []byte) map[string][]byte {
		m := maps.Clone(good)
		m[key] = value
		return m
	}
	for _, tt := range []struct {
		name    string
		data    map[string][]byte
		now     time.Time
		trusted bool
		changed []string
	}{
		{"all well", good, now, true, nil},
		{"well and not trusted yet", good, now, false, nil},
		// The bundle still has the old CA, and so the serving certificate holds until the new one is trusted.
		{"CA is no certificate", with(caCert, []byte("x")), now, true, []string{caCert, caKey, caBundle}},
		{"key of another", with(tlsKey, other[tlsKey]), now, true, []string{tlsCert, tlsKey}},
		{"certificate of another CA", func() map[string][]byte {
			m := with(tlsCert, other[tlsCert])
			m[tlsKey] = other[tlsKey]
			return m
		}(), now, true, []string{tlsCert, tlsKey}},
		{"no bundle", with(caBundle, nil), now, true, []string{caBundle}},
		{"a third left", good, now.Add(21 * 24 * time.Hour), true, []string{tlsCert, tlsKey}},
		{"expired after a long sleep", good, now.Add(31 * 24 * time.Hour), false, []string{tlsCert, tlsKey}},
		{"all expired", good, now.Add(400 * 24 * time.Hour), true, []string{caCert, caKey, caBundle, tlsCert, tlsKey}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next := renew(t, tt.now, tt.data, tt.trusted)
			var changed []string
			for _, k := range []string{caCert, caKey, caBundle, tlsCert, tlsKey} {
				if !bytes.Equal(next[k], tt.data[k]) {
					changed = append(changed, k)
				}
			}
			// A bundle may lose an expired CA beside.
			if len(changed) != len(tt.changed) {
				t.Errorf("changed %v, want %v", changed, tt.changed)
			}
			if !accepts(t, tt.now, next[caBundle], next) {
				t.Error("a client refuses the result")
			}
		})
	}
	t.Run("another name", func(t *testing.T) {
		p := testPlan
		p.names = append(p.names, "extra.example")
		next, err := p.renew(now, good, true)
		if err != nil || bytes.Equal(next[tlsCert], good[tlsCert]) {
			t.Errorf("the certificate lacks the new name: %v", err)
		}
	})
}

// A shorter life holds for what is there already.
func TestLifeShortened(t *testing.T) {
	now := time.Now()
	data := renew(t, now, nil, false)
	short := testPlan
	short.caLife, short.certLife = time.Hour, time.Minute
	for range 3 { // the CA, what it signs, nothing
		next, err := short.renew(now, data, true)
		if err != nil {
			t.Fatal(err)
		}
		data = next
	}
	pair, err := readPair(data[tlsCert], data[tlsKey])
	if err != nil || pair.Leaf.NotAfter.Sub(now) > time.Minute {
		t.Errorf("ends in %v: %v", pair.Leaf.NotAfter.Sub(now), err)
	}
}

func TestBundleTakesOursOnly(t *testing.T) {
	now := time.Now()
	data := renew(t, now, nil, false)
	if got := joinBundle(now, data[tlsCert], []byte("junk"), data[caCert], data[caCert]); !bytes.Equal(got, data[caCert]) {
		t.Errorf("bundle of %d certificates, want the CA once", len(readBundle(got)))
	}
}
