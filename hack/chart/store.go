package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

const (
	// storeCluster is the number of the cluster with a store. One with a number has an etcd that
	// demands certificates, and sandboxStore with access to it.
	storeCluster = 5
	sandboxStore = "hawser-mesh-store"
	// accessSecret is that access for agents and operator, accessPath where the chart mounts it.
	accessSecret = "etcd-access"
	accessPath   = "/var/lib/cilium/kvstore"
)

// storeSteps are those of a cluster whose identities are in a store.
func (l *lab) storeSteps() []step {
	return []step{
		{"a Secret with access to an etcd that demands certificates", l.storeSecret},
		{"install, identities in that etcd, the agents' files in " + l.stateDir, l.install("ipam.mode=cluster-pool", "ipam.clusterPool.ipv4Ranges={10.200.0.0/20}",
			"identity.allocationMode=kvstore", "kvstore.type=etcd", "kvstore.secretName="+accessSecret, `kvstore.options.etcd\.config=`+accessPath+"/etcd.config", "hubble.enabled=true")},
		{"pods reach each other and services; policies hold", l.works},
		{"identities are keys of the etcd, and there are no objects", l.keys},
		{"hawser in the agents' pods finds agent and flows", l.inPods},
		{"a token among the options is refused", l.refused(`kvstore.options.consul\.token=secret`)},
		{"an upgrade to no store is refused", l.refused("kvstore.type=", "identity.allocationMode=crd")},
		{"metrics of layer 7 are refused", l.refused("hubble.metrics.enabled={dns}")},
		{"upgrade to identities in both places, under traffic", l.underTraffic(l.upgrade("identity.allocationMode=doublewrite-readkvstore"))},
		{"upgrade back to the etcd alone, under traffic", l.underTraffic(l.upgrade("identity.allocationMode=kvstore"))},
		{"pods reach each other and services; policies hold", l.works},
		{"uninstall: nothing of the release is left in the cluster", l.uninstall},
		{"cleanup as the manual says: nothing is left on nodes", l.cleanup},
	}
}

// storeSecret makes the Secret as the manual says.
func (l *lab) storeSecret(ctx context.Context) error {
	data := map[string]string{}
	for _, key := range []string{"ca.crt", "tls.crt", "tls.key"} {
		text, err := l.secret(ctx, sandboxStore, key)
		if err != nil {
			return err
		}
		data[key] = text
	}
	data["etcd.config"] = fmt.Sprintf("endpoints: [https://%s:2379]\ntrusted-ca-file: %[2]s/ca.crt\ncert-file: %[2]s/tls.crt\nkey-file: %[2]s/tls.key\n", l.underlay(10), accessPath)
	doc, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": accessSecret, "namespace": "kube-system"}, "stringData": data,
	})
	if err != nil {
		return err
	}
	return l.apply(ctx, string(doc))
}

// inAgent runs hawser in the pod of an agent.
func (l *lab) inAgent(ctx context.Context, args ...string) (string, error) {
	return l.k(ctx, append([]string{"-n", "kube-system", "exec", "daemonset/hawser-agent", "-c", "agent", "--", "hawser"}, args...)...)
}

// keys sees that identities are in the store and nowhere else.
func (l *lab) keys(ctx context.Context) error {
	out, err := l.inAgent(ctx, "kvstore", "get", "--recursive", "cilium/state/identities/v1/id/", "--kvstore", "etcd", "--kvstore-opt", "etcd.config="+accessPath+"/etcd.config")
	if err != nil {
		return err
	}
	if !strings.Contains(out, "k8s:app=client;") || !strings.Contains(out, "k8s:app=web;") {
		return fmt.Errorf("client and web have no identities of their own: %q", out)
	}
	if out, err = l.k(ctx, "get", "ciliumidentities", "-o", "name"); err == nil && strings.TrimSpace(out) != "" {
		err = fmt.Errorf("there are objects: %s", out)
	}
	return err
}

// inPods asks the agent and its server of flows, as the manual says.
func (l *lab) inPods(ctx context.Context) error {
	if out, err := l.inAgent(ctx, "status"); err != nil || !strings.Contains(out, "etcd") {
		return fmt.Errorf("it does not speak of the etcd: %w: %s", err, out)
	}
	_, err := l.inAgent(ctx, "observe", "status")
	return err
}
