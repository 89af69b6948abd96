// Package instance finds out on which machine of a cloud the agent runs, and writes into the node's
// CiliumNode what the operator must know of it: the machine, and what the node is to have of the
// cloud by the agent's configuration.
//
// [Read] asks the instance metadata service of the cloud. Whoever can answer in its place, or stand
// between it and the node, can say what he likes: the answer is bounded in size and time, each
// field has the form that the cloud gives it or the whole is refused, and the machine must have a
// network interface with the hardware address that the metadata name. The service is asked once for
// each boot, so that a restart of the agent does not depend on it.
//
// No SDK of a cloud is linked: the requests are a dozen lines for each cloud, and the program that
// runs on every node must be small and hold no credentials. The agent asks for none either: it
// reads nothing below the paths where the service has them.
package instance
