// Program with all servers of a Kubernetes node, of which its own name chooses one: their common packages are
// linked once. scripts/cluster/build-kubernetes.sh builds it in the tree of Kubernetes 1.20.
package main

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// command returns the command of a server; nil if there is none of this name.
func command(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return manager.NewControllerManagerCommand()
	case "kube-scheduler":
		pflag.CommandLine.SetNormalizeFunc(flag.WordSepNormalizeFunc)
		return scheduler.NewSchedulerCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand()
	}
	return nil
}

func main() {
	rand.Seed(time.Now().UnixNano())
	server := command(filepath.Base(os.Args[0]))
	if server == nil {
		fmt.Fprintf(os.Stderr, "no server is named %s\n", os.Args[0])
		os.Exit(2)
	}
	logs.InitLogs()
	defer logs.FlushLogs()
	if server.Execute() != nil {
		os.Exit(1)
	}
}
