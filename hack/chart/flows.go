package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"
)

// flows checks that the relay reaches all nodes with certificates of the chart, and that the page
// serves flows only with its token.
func (l *lab) flows(ctx context.Context) error {
	for _, name := range []string{"hubble-relay", "hubble-ui"} {
		if _, err := l.k(ctx, "-n", "kube-system", "rollout", "status", "deployment/"+name, "--timeout=120s"); err != nil {
			return err
		}
	}
	if err := l.eventually(ctx, func() error { return l.relayNodes(ctx) }); err != nil {
		return fmt.Errorf("the relay: %w", err)
	}
	token, err := l.secret(ctx, "hubble-ui-token", "token")
	if err != nil {
		return err
	}
	ip, err := l.k(ctx, "-n", "kube-system", "get", "pods", "-l", "k8s-app=hubble-ui", "-o", "jsonpath={.items[0].status.podIP}")
	if err != nil {
		return err
	}
	page := func(token string) (string, error) {
		return l.do(ctx, l.hawser, "sandbox", "exec", "--name", l.name, l.nodes()[0].name, "--",
			"curl", "-sS", "-m", "5", "-w", " %{http_code}", "-H", "Authorization: Bearer "+token, "http://"+ip+":8081/api/status")
	}
	if err := l.eventually(ctx, func() error {
		out, err := page(token)
		if err != nil {
			return err
		}
		for _, n := range l.nodes() {
			if !strings.Contains(out, n.name) {
				return fmt.Errorf("it does not know of %s: %.300s", n.name, out)
			}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("the page: %w", err)
	}
	if out, err := page("a-token-of-another-user"); err != nil || !strings.HasSuffix(strings.TrimSpace(out), " 401") {
		return fmt.Errorf("the page answers another user: %.100s %w", out, err)
	}
	return nil
}

// relayNodes asks the relay, from its own pod and with its certificate, which nodes it is connected
// to.
func (l *lab) relayNodes(ctx context.Context) error {
	const files = "/var/lib/hubble-relay/client/"
	observe := []string{"-n", "kube-system", "exec", "deployment/hubble-relay", "--", "hawser", "observe", "nodes", "--server", "localhost:4245"}
	out, err := l.k(ctx, append(observe, "--tls-ca-cert-files", files+"ca.crt", "--tls-client-cert-file", files+"tls.crt", "--tls-client-key-file", files+"tls.key")...)
	if err != nil {
		return err
	}
	if n := strings.Count(out, " connected "); n != len(l.nodes()) {
		return fmt.Errorf("it is connected to %d of %d nodes: %s", n, len(l.nodes()), out)
	}
	if out, err := l.k(ctx, append(observe, "--tls-ca-cert-files", files+"ca.crt")...); err == nil {
		return fmt.Errorf("it answers without a certificate: %s", out)
	}
	return nil
}

// keepsCertificates upgrades and looks whether the certificates are the same.
func (l *lab) keepsCertificates(ctx context.Context) error {
	all := func() (string, error) {
		out := ""
		for _, name := range []string{"hubble-authorities", "hubble-server-certs", "hubble-relay-client-certs", "hubble-relay-server-certs", "hubble-ui-client-certs", "hubble-ui-token"} {
			data, err := l.k(ctx, "-n", "kube-system", "get", "secret", name, "-o", "jsonpath={.data}")
			if err != nil {
				return "", err
			}
			out += data
		}
		return out, nil
	}
	before, err := all()
	if err != nil {
		return err
	}
	if err := l.upgrade("hubble.eventBufferCapacity=8191")(ctx); err != nil {
		return err
	}
	after, err := all()
	if err != nil {
		return err
	}
	if before != after {
		return errors.New("they are new ones")
	}
	// One that is due is renewed, and all use it without a restart.
	if _, err := l.k(ctx, "-n", "kube-system", "annotate", "--overwrite", "secret", "hubble-server-certs", "hawser.net/renew-after=1"); err != nil {
		return err
	}
	old, err := l.secret(ctx, "hubble-server-certs", "tls.crt")
	if err != nil {
		return err
	}
	// The annotation is ours now; helm asks before it takes it back.
	if err := l.upgrade("hubble.eventBufferCapacity=4095", "--force-conflicts")(ctx); err != nil {
		return err
	}
	renewed, err := l.secret(ctx, "hubble-server-certs", "tls.crt")
	if err == nil && renewed == old {
		err = errors.New("a certificate whose time has come stays")
	}
	if err != nil {
		return err
	}
	return l.eventually(ctx, func() error { return l.relayNodes(ctx) })
}

func (l *lab) secret(ctx context.Context, name, key string) (string, error) {
	out, err := l.k(ctx, "-n", "kube-system", "get", "secret", name, "-o", "jsonpath={.data."+strings.ReplaceAll(key, ".", `\.`)+"}")
	if err != nil {
		return "", err
	}
	data, err := base64.StdEncoding.DecodeString(out)
	return string(data), err
}

// eventually repeats until there is no error, for a minute.
func (l *lab) eventually(ctx context.Context, do func() error) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		err := do()
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}
