package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// runEtcd serves one etcd member until ctx ends. It tells descriptor readyFD when it answers.
func runEtcd(ctx context.Context, dir string, listen []string, readyFD int) error {
	cfg := embed.NewConfig()
	cfg.Name = "sandbox"
	cfg.Dir = dir
	cfg.LogLevel = "warn"
	cfg.EnableGRPCGateway = false
	// The sandbox does not outlive the machine, so nothing has to survive a power cut.
	cfg.UnsafeNoFsync = true
	// One member elects itself: no reason to wait a second for votes that do not come.
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = nil, nil
	for _, s := range listen {
		u, err := url.Parse(s)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		cfg.ListenClientUrls = append(cfg.ListenClientUrls, *u)
		cfg.AdvertiseClientUrls = append(cfg.AdvertiseClientUrls, *u)
	}
	peer := url.URL{Scheme: "unix", Path: dir + "/peer.sock"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return fmt.Errorf("etcd: %w", err)
	case <-time.After(30 * time.Second):
		return errors.New("etcd is not ready after 30 s")
	case <-ctx.Done():
		return nil
	}
	if err := machine.SignalReady(readyFD); err != nil {
		return err
	}
	select {
	case err := <-server.Err():
		return fmt.Errorf("etcd: %w", err)
	case <-ctx.Done():
		return nil
	}
}

func etcdCommand() *cobra.Command {
	var dir string
	var listen []string
	var readyFD int
	cmd := &cobra.Command{
		Use: "etcd", Hidden: true, Args: cobra.NoArgs,
		Short: "serve etcd for a sandbox (run by up)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runEtcd(cmd.Context(), dir, listen, readyFD)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "data directory")
	cmd.Flags().StringSliceVar(&listen, "listen", nil, "URLs to serve clients on")
	cmd.Flags().IntVar(&readyFD, "ready-fd", 0, "descriptor to tell when ready")
	return cmd
}
