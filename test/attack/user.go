package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// unprivileged is the user and group of processes without rights: those of the account nobody.
const unprivileged = 65534

// What an unprivileged process can be made to do.
const (
	userSend = "send" // SOURCE DESTINATION HEX: a datagram, from an address if one is given
	userRaw  = "raw"  // open a packet socket, and one for IP
	userGet  = "get"  // SOCKET PATH: ask an agent
)

// asUser gives up all rights but those of a user and a group, and does something. The outcome is
// what it prints.
func asUser(args []string) int {
	uid, err := strconv.Atoi(args[0])
	if err == nil {
		var gid int
		gid, err = strconv.Atoi(args[1])
		err = errors.Join(err, syscall.Setgroups(nil), syscall.Setresgid(gid, gid, gid), syscall.Setresuid(uid, uid, uid))
	}
	if err == nil && uid != 0 && syscall.Setuid(0) == nil {
		err = errors.New("the rights are still there")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	switch what, args := args[2], args[3:]; what {
	case userSend:
		err = sendAs(args[0], args[1], args[2])
	case userRaw:
		err = openRaw()
	case userGet:
		err = getAs(args[0], args[1])
	default:
		err = fmt.Errorf("unknown action %q", what)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// sendAs sends a datagram three times, from an address that need not be the machine's.
func sendAs(source, destination, payload string) error {
	b, err := hex.DecodeString(payload)
	if err != nil {
		return err
	}
	d := net.Dialer{}
	if source != "" {
		from, err := netip.ParseAddrPort(source)
		if err != nil {
			return err
		}
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
		// Everybody may bind an address that is not there (ip(7), ipv6(7)).
		d.Control = func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) {
				if from.Addr().Is4() {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
				} else {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
				}
			}), err)
		}
	}
	c, err := d.Dial("udp", destination)
	if err != nil {
		return err
	}
	defer c.Close()
	for range 3 {
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// openRaw opens sockets that send what they like.
func openRaw() error {
	for _, s := range [][3]int{{unix.AF_PACKET, unix.SOCK_RAW, 0}, {unix.AF_INET, unix.SOCK_RAW, protoUDP}, {unix.AF_INET6, unix.SOCK_RAW, protoUDP}} {
		fd, err := unix.Socket(s[0], s[1], s[2])
		if err == nil {
			return unix.Close(fd)
		}
		if err != unix.EPERM {
			return err
		}
	}
	return unix.EPERM
}

func getAs(socket, path string) error {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	resp, err := client.Get("http://agent" + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// as runs something as a user and a group in a namespace. What it says is the error, nil if it
// worked.
func (s *scene) as(p *place, uid, gid int, action ...string) error {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	var out strings.Builder
	cmd := exec.CommandContext(ctx, exe, append([]string{helperUser, fmt.Sprint(uid), fmt.Sprint(gid)}, action...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := machine.InNamespace(p.path, cmd.Start); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 1 {
			return errors.New(strings.TrimSpace(out.String()))
		}
		return fmt.Errorf("%w: %w: %s", errControl, err, out.String())
	}
	return nil
}
