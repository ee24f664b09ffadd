// Package webhook is the shell around package inject: it answers the API server's
// AdmissionReviews over TLS, with a certificate that it makes, shares between its
// replicas and rotates by itself.
//
// It never denies a pod. Whatever goes wrong is allowed unchanged, counted, and
// told in a warning.
//
// # Certificates
//
// The Secret of Config.CertSecret holds a CA and one serving certificate, common
// to all replicas:
//
//	ca.crt, ca.key     the CA that signs now
//	ca-bundle.crt      all CAs to trust: the present one, and former ones that live
//	tls.crt, tls.key   the serving certificate
//
// Every check, once a minute, reads it, renews what has less than a third of its
// life left, writes the bundle into the webhook configuration, and loads the
// serving certificate. Replicas agree by the Secret's resource version: the one
// that writes first wins, the others take what it wrote. A new CA is trusted
// before it signs: it enters the bundle at one check, and signs at the next that
// finds it in the webhook configuration. A former CA stays in the bundle until it
// has expired, which no certificate of its outlives.
package webhook
