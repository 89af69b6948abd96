package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd/member"
)

// etcdServer is one member of etcd that is alone.
type etcdServer struct {
	dir     string
	listen  []string
	readyFD int
	// tls is a directory with ca.crt, server.crt and server.key: clients must show a certificate of
	// that authority. Empty for none.
	tls string
	// writer and reader are the names of certificates: one may do everything, the other one read
	// these keys and what is below these prefixes. Without a writer all clients may do everything.
	writer, reader string
	keys, prefixes []string
}

// run serves until ctx ends. It notifies descriptor readyFD when it answers.
func (e *etcdServer) run(ctx context.Context) error {
	m := member.Member{Name: "sandbox", Dir: e.dir, PeerSocket: e.dir + "/peer.sock", LogLevel: "warn"}
	for _, s := range e.listen {
		u, err := url.Parse(s)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		m.Listen = append(m.Listen, *u)
	}
	if e.tls != "" {
		file := func(name string) string { return filepath.Join(e.tls, name) }
		m.TLS = transport.TLSInfo{
			CertFile: file("server.crt"), KeyFile: file("server.key"), TrustedCAFile: file("ca.crt"), ClientCertAuth: true,
		}
	}
	server, err := m.Start(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer server.Close()
	if err := e.resume(ctx, v3client.New(server.Server)); err != nil {
		return fmt.Errorf("revision of etcd: %w", err)
	}
	if e.writer != "" {
		if err := e.protect(ctx, v3client.New(server.Server)); err != nil {
			return fmt.Errorf("rights of etcd: %w", err)
		}
	}
	if err := machine.SignalReady(e.readyFD); err != nil {
		return err
	}
	return member.Wait(ctx, server)
}

// RevisionFile is the name of a file in the directory of data. A restore of an older copy of the
// data must write into it, as decimal digits, the revision that had been reached.
const RevisionFile = "revision"

// resume goes on above the revision in RevisionFile and compacts what is older, as etcd's own
// restore does with --bump-revision and --mark-compacted: no revision is given out twice, and who
// watches from one that is gone has to list again.
func (e *etcdServer) resume(ctx context.Context, c *clientv3.Client) error {
	file := filepath.Join(e.dir, RevisionFile)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	reached, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for {
		r, err := c.Put(ctx, "restored", "")
		if err != nil {
			return err
		}
		if r.Header.Revision > reached {
			if _, err := c.Compact(ctx, r.Header.Revision); err != nil {
				return err
			}
			return os.Remove(file)
		}
	}
}

// protect gives writer and reader their rights, and all others none. A member that was started
// again has them already.
func (e *etcdServer) protect(ctx context.Context, c *clientv3.Client) error {
	st, err := c.AuthStatus(ctx)
	if err != nil || st.Enabled {
		return err
	}
	const root = "root" // etcd wants a user of this name
	byCertificate := &clientv3.UserAddOptions{NoPassword: true}
	user := func(name, role string) error {
		_, err := c.UserAddWithOptions(ctx, name, "", byCertificate)
		if err == nil {
			_, err = c.UserGrantRole(ctx, name, role)
		}
		return err
	}
	if _, err := c.RoleAdd(ctx, e.reader); err != nil {
		return err
	}
	read := clientv3.PermissionType(clientv3.PermRead)
	for _, k := range e.keys {
		if _, err := c.RoleGrantPermission(ctx, e.reader, k, "", read); err != nil {
			return err
		}
	}
	for _, p := range e.prefixes {
		if _, err := c.RoleGrantPermission(ctx, e.reader, p, clientv3.GetPrefixRangeEnd(p), read); err != nil {
			return err
		}
	}
	if err := errors.Join(user(root, root), user(e.writer, root), user(e.reader, e.reader)); err != nil {
		return err
	}
	_, err = c.AuthEnable(ctx)
	return err
}

func etcdCommand() *cobra.Command {
	var e etcdServer
	cmd := &cobra.Command{
		Use: "etcd", Hidden: true, Args: cobra.NoArgs,
		Short: "serve etcd for a sandbox (run by up)",
		RunE:  func(cmd *cobra.Command, _ []string) error { return e.run(cmd.Context()) },
	}
	fs := cmd.Flags()
	fs.StringVar(&e.dir, "dir", "", "data directory")
	fs.StringSliceVar(&e.listen, "listen", nil, "URLs to serve clients on")
	fs.IntVar(&e.readyFD, "ready-fd", 0, "descriptor to notify when ready")
	fs.StringVar(&e.tls, "tls-dir", "", "directory with ca.crt, server.crt and server.key, to ask clients for certificates")
	fs.StringVar(&e.writer, "writer", "", "name of the certificate that may do everything")
	fs.StringVar(&e.reader, "reader", "", "name of the certificate that may read")
	fs.StringArrayVar(&e.keys, "readable", nil, "key that the reader may read")
	fs.StringArrayVar(&e.prefixes, "readable-below", nil, "prefix of keys that the reader may read")
	return cmd
}
