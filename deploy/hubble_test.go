package deploy_test

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-net/hawser/internal/cli"
	"github.com/hawser-net/hawser/internal/relay"
)

// TestRelayAndPage: both are started with options that they take, at ports at which they are asked
// for, and may do nothing but that.
func TestRelayAndPage(t *testing.T) {
	t.Parallel()
	var relayPods, pagePods appsv1.Deployment
	oneOf(t, withHubble, "Deployment", "hubble-relay", &relayPods)
	oneOf(t, withHubble, "Deployment", "hubble-ui", &pagePods)

	cfg := relay.Defaults()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	cfg.Flags(fs)
	container := relayPods.Spec.Template.Spec.Containers[0]
	if err := fs.Parse(container.Args); err != nil || container.Command[0] != "hawser-relay" {
		t.Fatalf("%v: %v", container.Command, err)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	if cfg.NoClientTLS || cfg.NoServerTLS {
		t.Error("the relay asks or serves without TLS")
	}
	for what, probe := range map[string]*corev1.Probe{"liveness": container.LivenessProbe, "readiness": container.ReadinessProbe} {
		if probe.GRPC == nil || !strings.HasSuffix(cfg.HealthAddress, ":4222") || probe.GRPC.Port != 4222 {
			t.Errorf("%s is asked for at %+v and served at %s", what, probe.ProbeHandler, cfg.HealthAddress)
		}
	}
	var service corev1.Service
	oneOf(t, withHubble, "Service", "hubble-relay", &service)
	if p := service.Spec.Ports[0]; p.TargetPort.String() != "grpc" || !strings.HasSuffix(cfg.ListenAddress, ":4245") || container.Ports[0].ContainerPort != 4245 {
		t.Errorf("the service leads to %v and the relay listens at %s", p, cfg.ListenAddress)
	}

	// The name and the port of the list of nodes are those of the agents.
	var config corev1.ConfigMap
	oneOf(t, withHubble, "ConfigMap", "cilium-config", &config)
	oneOf(t, withHubble, "Service", "hubble-peer", &service)
	if cfg.PeerService != "hubble-peer.kube-system.svc.cluster.local:443" || service.Spec.Ports[0].Port != 443 ||
		":"+service.Spec.Ports[0].TargetPort.String() != config.Data["hubble-listen-address"] || config.Data["cluster-name"] != cfg.ClusterName {
		t.Errorf("the relay asks %s for nodes, which leads to %+v; agents are %v", cfg.PeerService, service.Spec, config.Data)
	}
	var agents appsv1.DaemonSet
	oneOf(t, withHubble, "DaemonSet", "hawser-agent", &agents)
	for key, value := range service.Spec.Selector {
		if agents.Spec.Template.Labels[key] != value {
			t.Errorf("the service hubble-peer selects %s=%s, which agents are not", key, value)
		}
	}
	for _, key := range []string{"hubble-tls-cert-file", "hubble-tls-key-file", "hubble-tls-client-ca-files"} {
		if path := config.Data[key]; !mounted(agents.Spec.Template.Spec, 0, path[:strings.LastIndexByte(path, '/')], "hubble-tls") {
			t.Errorf("%s=%s is not mounted", key, path)
		}
	}

	// The page: the command takes its options, and lacks only the files.
	page := pagePods.Spec.Template.Spec.Containers[0]
	command := cli.NewCommand(cli.Config{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }})
	c, rest, err := command.Find(append(slices.Clone(page.Command[1:]), page.Args...))
	if err != nil || c.Name() != "ui" {
		t.Fatalf("%v: %v", page.Command, err)
	}
	if err := c.ParseFlags(rest); err != nil {
		t.Error(err)
	}

	for name, pods := range map[string]corev1.PodSpec{"hubble-relay": relayPods.Spec.Template.Spec, "hubble-ui": pagePods.Spec.Template.Spec} {
		s := pods.Containers[0].SecurityContext
		if pods.HostNetwork || pods.ServiceAccountName != name || pods.AutomountServiceAccountToken == nil || *pods.AutomountServiceAccountToken ||
			!*s.RunAsNonRoot || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Contains(s.Capabilities.Drop, "ALL") || len(s.Capabilities.Add) > 0 {
			t.Errorf("%s may do more than it needs: %+v", name, s)
		}
		for _, v := range pods.Volumes {
			if v.HostPath != nil {
				t.Errorf("%s has %s of its node", name, v.HostPath.Path)
			}
		}
		oneOf(t, withHubble, "Service", name, &service)
		if service.Spec.Type != corev1.ServiceTypeClusterIP {
			t.Errorf("%s is exposed as %s", name, service.Spec.Type)
		}
		// No rights: nothing is bound to its account.
		for _, u := range objects(t, withHubble) {
			subjects, ok := u.Object["subjects"].([]any)
			if !ok {
				continue
			}
			for _, subject := range subjects {
				if subject.(map[string]any)["name"] == name {
					t.Errorf("%s %s binds %s", u.GetKind(), u.GetName(), name)
				}
			}
		}
	}
}
