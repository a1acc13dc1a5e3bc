// SPDX-License-Identifier: Apache-2.0
// What the collectors of `deft doctor` make of texts, without a host.
#include <gmock/gmock.h>

#include "tools/doctor/command_words.h"
#include "tools/doctor/firewall_rules.h"
#include "tools/doctor/gpu_facts.h"
#include "tools/doctor/judge.h"
#include "tools/doctor/link_routes.h"
#include "tools/doctor/nccl_names.h"
#include "tools/doctor/nccl_search.h"
#include "tools/doctor/peer_text.h"
#include "tools/doctor/queue_rules.h"
#include "tools/doctor/settings_files.h"
#include "tools/doctor/wrapper_loss.h"
#include "tools/elf_dynamic.h"

namespace deft::tools::doctor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(DoctorFacts, VersionsOfNccl) {
    EXPECT_EQ(nccl_version_in("2.28.9"), 22809);
    EXPECT_EQ(nccl_version_in("2.28.9+cuda13.0"), 22809);
    EXPECT_EQ(nccl_version_in("2.8.4"), 2804);
    EXPECT_EQ(nccl_version_in("2"), 0);
    EXPECT_EQ(nccl_version_in("2.28"), 0);
    EXPECT_EQ(nccl_version_in(""), 0);
    EXPECT_EQ(nccl_version_text(22809), "2.28.9");
    EXPECT_EQ(nccl_version_text(2804), "2.8.4");
    EXPECT_EQ(nccl_version_text(0), "of unknown version");
}

TEST(DoctorFacts, OlderVersions) {
    EXPECT_TRUE(older_version("2.4", "2.28"));
    EXPECT_TRUE(older_version("2.17", "2.28"));
    EXPECT_TRUE(older_version("2.2.5", "2.3"));
    EXPECT_TRUE(older_version("2.2", "2.2.5"));
    EXPECT_FALSE(older_version("2.28", "2.28"));
    EXPECT_FALSE(older_version("2.36", "2.28"));
    EXPECT_FALSE(older_version("3", "2.28"));
}

TEST(DoctorFacts, VersionsOfTheDriver) {
    EXPECT_EQ(driver_version_in("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat "
                                "Aug 19 01:15:15 UTC 2023"),
              "535.104.05");
    EXPECT_EQ(driver_version_in("libcuda.so.550.54.14"), "550.54.14");
    EXPECT_EQ(driver_version_in("libcuda.so.1"), "");
    EXPECT_EQ(driver_version_in("GCC version: gcc version 12.2.0"), "");
}

TEST(DoctorFacts, RulesThatStopTcp) {
    const char* const nft = R"(table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state invalid drop
		tcp dport 22 accept
		ip saddr 10.0.0.0/8 tcp dport 30000-65535 reject
		udp dport 53 drop
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
	}
})";
    EXPECT_THAT(stopping_rules(nft),
                ElementsAre(HasSubstr("policy drop"), HasSubstr("30000-65535 reject")));
    EXPECT_THAT(stopping_rules(":INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n-A INPUT -p tcp -j "
                               "REJECT\n-A FORWARD -j DROP\n-A INPUT -p udp -j DROP\n"),
                SizeIs(2));
    // What Red Hat's hosts and firewalld end with: how the sender is told is no protocol.
    EXPECT_THAT(stopping_rules("-A INPUT -j REJECT --reject-with icmp-host-prohibited\n"),
                SizeIs(1));
    EXPECT_THAT(stopping_rules("chain filter_INPUT {\n  type filter hook input priority 10; policy "
                               "accept;\n  icmp type echo-request reject\n"
                               "  reject with icmpx admin-prohibited\n"),
                ElementsAre(HasSubstr("icmpx")));
    EXPECT_THAT(stopping_rules(":INPUT ACCEPT [0:0]\n"), IsEmpty());
    EXPECT_THAT(stopping_rules(""), IsEmpty());
}

TEST(DoctorFacts, NeighboursOfAnAddress) {
    const auto neighbour = [](const char* text, int prefix) {
        Address own;
        Address other;
        EXPECT_TRUE(parse_address(text, own)) << text;
        own.prefix = prefix;
        return neighbour_of(own, other) ? other.text() : std::string();
    };
    EXPECT_EQ(neighbour("10.1.0.4", 24), "10.1.0.5");
    EXPECT_EQ(neighbour("10.1.0.1", 24), "10.1.0.3");      // not the network itself
    EXPECT_EQ(neighbour("10.1.0.254", 24), "10.1.0.252");  // nor its broadcast address
    EXPECT_EQ(neighbour("10.1.0.1", 30), "10.1.0.2");
    EXPECT_EQ(neighbour("10.1.0.4", 31), "10.1.0.5");
    EXPECT_EQ(neighbour("10.1.0.4", 32), "");
    EXPECT_EQ(neighbour("fd00::8", 64), "fd00::9");
    EXPECT_EQ(neighbour("fe80::8", 64), "");
    EXPECT_EQ(neighbour("127.0.0.2", 8), "");
}

TEST(DoctorFacts, NamesOfNcclThatNobodyKnows) {
    EXPECT_THAT(unknown_nccl_names({"NCCL_SOCKET_IFNAMES"}),
                ElementsAre(HasSubstr("NCCL_SOCKET_IFNAME?")));
    EXPECT_THAT(unknown_nccl_names({"NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_IB_HCA"}), IsEmpty());
    EXPECT_THAT(unknown_nccl_names({"NCCL_IFNAME", "NCCL_DISABLE_P2P"}),
                ElementsAre(HasSubstr("NCCL_SOCKET_IFNAME?"), HasSubstr("NCCL_P2P_DISABLE?")));
    EXPECT_THAT(unknown_nccl_names({"NCCL_GIN_ENABLE", "NCCL_PAT_ENABLE"}), IsEmpty());
    EXPECT_THAT(unknown_nccl_names({"NCCL_QUITE_SOMETHING_ELSE_OF_ANOTHER_RELEASE"}), IsEmpty());
}

TEST(DoctorFacts, WrappersThatLoseThePreload) {
    using Words = std::vector<std::string>;
    for (const Words& words : {Words{"mpirun", "-H", "a,b", "./train"},
                               Words{"mpirun", "--hostfile=h", "./train"},
                               Words{"apptainer", "exec", "--cleanenv", "x.sif", "./train"},
                               Words{"sbatch", "--export=NONE", "job.sh"},
                               Words{"bwrap", "--clearenv", "./train"},
                               Words{"deepspeed", "--hostfile", "h", "train.py"},
                               Words{"enroot", "start", "x.sqsh", "./train"},
                               Words{"ray", "job", "submit", "--", "./train"},
                               Words{"/usr/sbin/chroot", "/x", "y"},
                               Words{"qsub", "job.sh"},
                               Words{"parallel", "-j", "2", "-S", "a,b", "./train"},
                               Words{"tmux", "new-session", "-d", "./train"},
                               Words{"machinectl", "shell", "x"},
                               Words{"nix-shell", "--pure", "--run", "./train"},
                               Words{"firejail", "./train"},
                               Words{"flux", "run", "--env=-*", "./train"},
                               Words{"flux", "run", "--env=-LD_*", "./train"},
                               Words{"mpiexec", "-genvnone", "-n", "2", "./train"},
                               Words{"mpirun", "-genvlist", "PATH,HOME", "./train"},
                               Words{"mpirun", "-H", "localhost:2,b", "./train"},
                               Words{"bsub", "-env", "none", "./train"},
                               Words{"apptainer", "exec", "-B", "/x", "-e", "x.sif", "./train"}}) {
        EXPECT_THAT(wrapper_loss(words), HasSubstr("; ")) << words[0];
    }
    for (const Words& words :
         {Words{"mpirun", "-np", "2", "./train"},
          Words{"mpirun", "-H", "a", "-x", "LD_PRELOAD"},
          Words{"mpirun", "-f", "h", "-host", "a", "./train"},
          Words{"apptainer", "exec", "x.sif", "./train"},
          Words{"sbatch", "job.sh"},
          Words{"sbatch", "--export=ALL,A=1", "job.sh"},
          Words{"deepspeed", "train.py"},
          Words{"enroot", "start", "x", "/opt/deft/bin/deft", "run", "--", "./train"},
          Words{"enroot", "import", "x"},
          Words{"enroot", "start", "-e", "LD_PRELOAD", "x", "./train"},
          Words{"ray", "start"},
          Words{"qsub", "-V", "job.sh"},
          Words{"parallel", "python3", "-S", "train.py"},
          Words{"tmux", "attach"},
          Words{"flux", "run", "./train"},
          Words{"flux", "run", "--env=-CUDA_*", "./train"},
          Words{"mpiexec", "-genvlist", "LD_PRELOAD,NCCL_NET_PLUGIN", "./train"},
          Words{"mpirun", "-H", "localhost:4", "./train"},
          Words{"mpirun", "--host=127.0.0.1", "./train"},
          Words{"bsub", "./train"},
          Words{"bsub", "-env", "all, A=1", "./train"},
          Words{"apptainer", "exec", "x.sif", "./train", "-e", "5"},
          Words{}}) {
        EXPECT_EQ(wrapper_loss(words), "");
    }
}

TEST(DoctorFacts, ContainersOfWhichNobodyKnowsWhetherTheyHaveTheLibrary) {
    using Words = std::vector<std::string>;
    for (const Words& words :
         {Words{"apptainer", "exec", "x.sif", "./train"},
          Words{"/usr/bin/srun", "--container-image=x", "./train"},
          Words{"ch-run", "image", "./train"}, Words{"nsenter", "-t", "1", "-m", "./train"},
          Words{"docker", "run", "-e", "LD_PRELOAD", "x", "./train"}}) {
        EXPECT_THAT(container_doubt(words), HasSubstr("; ")) << words[0];
    }
    for (const Words& words :
         {Words{"apptainer", "exec", "-B", "/opt/deft", "x.sif", "./train"},
          Words{"srun", "./train"}, Words{"docker", "run", "x", "./train"},
          Words{"nsenter", "-t", "1", "-n", "python3", "-m", "train"}, Words{}}) {
        EXPECT_EQ(container_doubt(words), "");
    }
}

TEST(DoctorFacts, WhatPythonStarts) {
    EXPECT_EQ(python_call({"python", "-u", "t.py", "-E"}).script, "t.py");
    EXPECT_EQ(python_call({"python", "-u", "t.py", "-E"}).ignores, "");
    EXPECT_EQ(python_call({"python", "-uE", "t.py"}).ignores, "-uE");
    EXPECT_EQ(python_call({"python", "-W", "ignore", "t.py"}).script, "t.py");
    EXPECT_EQ(python_call({"python", "-Wignore", "-X", "dev", "t.py"}).script, "t.py");
    EXPECT_EQ(python_call({"python", "-m", "torch.distributed.run", "t.py"}).module,
              "torch.distributed.run");
    EXPECT_EQ(python_call({"python", "-Im", "x"}).ignores, "-Im");
    EXPECT_EQ(python_call({"python", "-c", "import x"}).code, "import x");
    EXPECT_EQ(python_call({"python"}).script, "");
}

TEST(DoctorFacts, PeersTellEachOther) {
    PeerInfo info;
    info.host = "a\xff";
    info.version = "1.0";
    info.time = 1.5;
    info.port = 4000;
    info.settings = {{"DEFT_MODE", "exact"}};
    Address address;
    ASSERT_TRUE(parse_address("10.0.0.1", address));
    info.links = {{"eth0", {address}}};
    PeerInfo back;
    ASSERT_TRUE(parse_peer_info(peer_info_text(info), back));
    EXPECT_EQ(back.version, "1.0");
    EXPECT_EQ(back.time, 1.5);
    EXPECT_EQ(back.port, 4000);
    EXPECT_EQ(back.settings, info.settings);
    ASSERT_THAT(back.links, SizeIs(1));
    EXPECT_EQ(back.links[0].addresses[0].text(), "10.0.0.1");
}

TEST(DoctorFacts, WhatIsNoPeerIsNotBelieved) {
    PeerInfo back;
    for (const char* text :
         {"", "{}", "[]", "HTTP/1.1 400 Bad Request", "{\"format\":\"deft-doctor-peer\"}",
          R"({"format":"deft-doctor-peer","host":"h","version":"1","time":"x","port":1,)"
          R"("settings":{},"links":[]})",
          R"({"format":"deft-doctor-peer","host":"h","version":"1","time":1,"port":70000,)"
          R"("settings":{},"links":[]})"}) {
        EXPECT_FALSE(parse_peer_info(text, back)) << text;
    }
}

TEST(DoctorFacts, SlurmsOptionInTheEnvironment) {
    Environment environment;
    EXPECT_EQ(variable_loss({"srun", "./train"}, environment), "");
    environment.set("SLURM_EXPORT_ENV", "NONE");
    EXPECT_THAT(variable_loss({"srun", "./train"}, environment),
                HasSubstr("srun with SLURM_EXPORT_ENV=NONE hands on no LD_PRELOAD"));
    EXPECT_EQ(variable_loss({"srun", "--export=ALL", "./train"}, environment), "");
    EXPECT_EQ(variable_loss({"srun", "deft", "run", "--", "./train"}, environment), "");
    EXPECT_EQ(variable_loss({"sbatch", "job.sh"}, environment), "");
    environment.set("SBATCH_EXPORT", "PATH");
    EXPECT_THAT(variable_loss({"sbatch", "job.sh"}, environment), HasSubstr("SBATCH_EXPORT=PATH"));
}

TEST(DoctorFacts, ApptainersOptionsInTheEnvironment) {
    const std::vector<std::string> command{"apptainer", "exec", "x.sif", "./train"};
    for (const char* name : {"APPTAINER_CLEANENV", "SINGULARITY_CONTAINALL"}) {
        Environment environment;
        EXPECT_EQ(variable_loss(command, environment), "");
        environment.set(name, "0");
        EXPECT_EQ(variable_loss(command, environment), "");
        environment.set(name, "1");
        EXPECT_THAT(variable_loss(command, environment), HasSubstr(name + std::string("=1")));
        EXPECT_EQ(variable_loss({"srun", "./train"}, environment), "");
        environment.set("APPTAINERENV_LD_PRELOAD", "/x.so");
        environment.set("SINGULARITYENV_LD_PRELOAD", "/x.so");
        EXPECT_EQ(variable_loss(command, environment), "");
    }
}

TEST(DoctorFacts, NamesThatAreNotReplaced) {
    EXPECT_EQ(unreplaced_part("/x/%j-%h.json"), "");
    EXPECT_EQ(unreplaced_part("/x/100%%r%r.json"), "");
    EXPECT_EQ(unreplaced_part("/x/%H.json"), "%H");
    EXPECT_EQ(unreplaced_part("/x/%%%N"), "%N");
    EXPECT_EQ(unreplaced_part("/x/%"), "");
}

TEST(DoctorFacts, MeasurementsThatAreNone) {
    constexpr std::int64_t kDay = 86400;
    const auto file = [](const char* from, int days) {
        return R"({"format": "deft-probe", "version": 1, "measured_at": )" +
               std::to_string(days * kDay) + R"(, "pairs": [{"links": [{"from_address": ")" + from +
               R"(", "to_address": "192.0.2.9", "there": {"gbit_per_s": 1}}]}]})";
    };
    Interface link;
    link.addresses.resize(1);
    ASSERT_TRUE(parse_address("192.0.2.1", link.addresses[0]));
    const std::vector<Interface> own = {link};
    EXPECT_EQ(probe_problem(file("192.0.2.1", 30), 0, 31 * kDay, own), "");
    EXPECT_THAT(probe_problem(file("192.0.2.1", 30), 0, 38 * kDay, own), HasSubstr("8 days ago"));
    EXPECT_THAT(probe_problem(file("192.0.2.2", 30), 0, 31 * kDay, own),
                HasSubstr("no measured pair of this host"));
    for (const char* text : {"s\n", "", "[]", "{}", R"({"format": "deft-probe", "version": 2})",
                             R"({"format": "deft-probe", "version": 1, "pairs": 7})"}) {
        EXPECT_THAT(probe_problem(text, 0, 0, own), HasSubstr("; run deft probe")) << text;
    }
}

TEST(DoctorFacts, LinesThatTakeEachOthersEffectAway) {
    const auto line = [](ConfigLine::Kind kind, const char* value, const char* origin) {
        return ConfigLine{kind, "DEFT_MODE", "force.DEFT_MODE", value, origin};
    };
    using Kind = ConfigLine::Kind;
    ConfigFile file;
    file.lines = {line(Kind::Set, "off", "f:1"), line(Kind::Set, "exact", "f:3, section [user=a]"),
                  line(Kind::Force, "off", "f:4, section [user=a]")};
    EXPECT_THAT(contradictions(file), IsEmpty()) << "the walk-through of docs/fleets.md";
    file.lines.push_back(line(Kind::Force, "off", "f:6, section [host=b]"));
    EXPECT_THAT(contradictions(file), IsEmpty()) << "both force the same";
    file.lines.push_back(line(Kind::Force, "exact", "f:8, section [host=c]"));
    EXPECT_THAT(contradictions(file), SizeIs(2));
    file.lines = {line(Kind::Set, "off", "f:1"), line(Kind::Set, "exact", "f:2")};
    EXPECT_THAT(contradictions(file), ElementsAre(HasSubstr("f:2 sets")));
}

TEST(QueueRules, ThoseThatLimitAreFound) {
    const auto found = shaped_links(
        "qdisc noqueue 0: dev lo root refcnt 2 \n"
        "qdisc tbf 8001: dev eth1 root refcnt 2 rate 100Mbit burst 32Kb lat 10ms \n"
        "qdisc netem 2: dev eth2 parent 1:1 limit 1000 delay 50ms loss 3%\n"
        "qdisc cake 1: dev eth3 root refcnt 2 bandwidth unlimited\n"
        "qdisc cake 1: dev eth4 root refcnt 2 bandwidth 1Gbit\n"
        "qdisc fq_codel 0: dev eth5 root\nqdisc tbf\n");
    EXPECT_EQ(found.size(), 3U);
    EXPECT_EQ(found.at("eth1"), "tbf rate 100Mbit burst 32Kb lat 10ms");
    EXPECT_EQ(found.at("eth2"), "netem limit 1000 delay 50ms loss 3%");
    EXPECT_EQ(found.at("eth4"), "cake bandwidth 1Gbit");
}

}  // namespace
}  // namespace deft::tools::doctor
