package restapi

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socketGroup is the group whose members may use the API in addition to root, if it exists.
const socketGroup = "cilium"

// Listen opens a unix socket of the API, at the path that an option names: mode 0660, owned by
// root and, if there is one, the group of those who may use it. A socket that a dead agent left is
// replaced; one that answers is not.
func Listen(path, option string, log *slog.Logger) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("create the directory of the API socket: %w", err)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("another agent answers at %s; stop it first or choose another %s", path, option)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier agent: %w", err)
	}
	// The socket must never be open to others, not even between its creation and a chmod.
	l, err := listenWithMask(path)
	if err != nil {
		return nil, fmt.Errorf("open the API socket: %w", err)
	}
	gid := -1
	if g, err := user.LookupGroup(socketGroup); err == nil {
		if gid, err = strconv.Atoi(g.Gid); err == nil {
			err = os.Chown(path, 0, gid)
		}
		if err != nil {
			l.Close()
			return nil, fmt.Errorf("give the API socket to group %s: %w", socketGroup, err)
		}
	}
	if err := os.Chmod(path, 0o660); err != nil {
		l.Close()
		return nil, fmt.Errorf("set the mode of the API socket: %w", err)
	}
	return &checkedListener{UnixListener: l, gid: gid, log: log}, nil
}

// listenWithMask makes the socket accessible to root only from the start: it is created in a
// directory of its own, and then moved.
func listenWithMask(path string) (*net.UnixListener, error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	tmp := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it will have moved
	err = os.Chmod(tmp, 0o600)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// checkedListener accepts only root and members of the socket's group, whatever has become of the
// mode of the file.
type checkedListener struct {
	*net.UnixListener
	gid int
	log *slog.Logger
}

// Accept waits for the next connection of a user who may use the API.
func (l *checkedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		cred, err := peerOf(conn)
		if err == nil && (cred.Uid == uint32(os.Geteuid()) || cred.Uid == 0 || (l.gid >= 0 && inGroup(cred, l.gid))) {
			return conn, nil
		}
		l.log.Warn("refused a connection to the API", "credentials", cred, "error", err)
		conn.Close()
	}
}

func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, cerr
}

// inGroup reports whether the peer's primary group or one of its user's groups is gid.
func inGroup(cred *unix.Ucred, gid int) bool {
	if cred.Gid == uint32(gid) {
		return true
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(cred.Uid), 10))
	if err != nil {
		return false
	}
	groups, err := u.GroupIds()
	if err != nil {
		return false
	}
	return slices.Contains(groups, strconv.Itoa(gid))
}
